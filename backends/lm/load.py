"""From files and options to a runner that is ready: the model's parts put together."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from backends.api.errors import Code, ServingError
from backends.lm.capacity import Capacity, Memory, bytes_per_block, host_memory, plan_capacity
from backends.lm.checkpoint import Checkpoint, GgufWeights
from backends.lm.config_gguf import read_gguf_config
from backends.lm.config_hf import read_eos_token_ids, read_hf_config, read_json
from backends.lm.device import choose_device
from backends.lm.fingerprint import fingerprint
from backends.lm.gguf import read_gguf
from backends.lm.grammar_compiler import guidance_vocabulary
from backends.lm.hf_model import HfModel
from backends.lm.location import find_model
from backends.lm.model import Decoder, LayerProgress, attention_specs
from backends.lm.ops import AttentionBatch, AttentionSpec, Ops
from backends.lm.ops_choice import choose_dtype, choose_ops, set_threads
from backends.lm.options import LmOptions
from backends.lm.runner import LmRunner, PagedModel, RunnerLimits
from backends.lm.safetensors import SafetensorsFile

log = logging.getLogger(__name__)

Progress = Callable[[str, float, float], None]
"""Called with what is being done, how much of it is done, and of how much."""


def load_runner(folder: Path, options: LmOptions, progress: Progress | None = None) -> LmRunner:
    """The model that `options.model` names, relative to `folder`, with its KV cache allocated and kernels warm.

    Without `progress`, a terminal on stderr gets a bar when loading takes long. Raises ServingError for files or
    options that are wrong, naming them.
    """
    started = time.monotonic()
    path = find_model(options.model, folder)
    threads = set_threads(options)
    device = choose_device(options.device)
    checkpoint = open_checkpoint(path)
    if checkpoint is None:
        loaded = _load_hf(path, options, device, threads)
    else:
        loaded = _load_own(checkpoint, path, options, device, threads, progress)
    ops, capacity = loaded.ops, loaded.capacity
    with _closed_on_error(ops):
        _warm_up(loaded.model, options.block_size, capacity)
    log.info(
        "loaded %s in %.1f s: %s, %d threads, keys and values %s, %d blocks of %d tokens, max_model_len %d",
        path.name,
        time.monotonic() - started,
        type(ops).__name__,
        threads,
        str(ops.kv_dtype).removeprefix("torch."),
        capacity.num_blocks,
        options.block_size,
        capacity.max_model_len,
    )
    limits = RunnerLimits(
        max_model_len=capacity.max_model_len,
        max_num_seqs=options.max_num_seqs,
        num_blocks=capacity.num_blocks,
        block_size=options.block_size,
        fingerprint=fingerprint(_fingerprint_files(path), type(ops).__name__, options.dtype, str(ops.kv_dtype)),
        eos_token_ids=frozenset(loaded.eos_token_ids),
    )
    return LmRunner(loaded.model, limits, partial(_vocabulary, path, loaded.model.vocab_size, limits.eos_token_ids))


def _vocabulary(path: Path, size: int, eos_ids: frozenset[int]) -> Any:
    from backends.text.tokenizer import load_tokenizer

    return guidance_vocabulary(load_tokenizer(path), size, eos_ids)


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: PagedModel
    ops: Ops
    capacity: Capacity
    eos_token_ids: tuple[int, ...]


def open_checkpoint(path: Path) -> Checkpoint | None:
    """A GGUF file's or a folder's weights; None for a folder whose architecture is not ours but transformers'."""
    if path.is_file():
        file = read_gguf(path)
        return Checkpoint(read_gguf_config(file), GgufWeights(file))
    config = read_hf_config(path)
    return None if config is None else Checkpoint(config, SafetensorsFile(path))


def _load_own(
    checkpoint: Checkpoint,
    path: Path,
    options: LmOptions,
    device: torch.device,
    threads: int,
    progress: Progress | None,
) -> _Loaded:
    config, specs = checkpoint.config, attention_specs(checkpoint.config)
    ops = choose_ops(options, device, specs, threads)
    with _closed_on_error(ops), _bar(path, config.num_layers, progress) as report:
        capacity = _capacity(options, config.max_positions, specs, ops, path)
        model = Decoder(
            checkpoint,
            ops,
            num_blocks=capacity.num_blocks,
            block_size=options.block_size,
            max_length=capacity.max_model_len,
            progress=report,
        )
    return _Loaded(model, ops, capacity, config.eos_token_ids)


def _load_hf(path: Path, options: LmOptions, device: torch.device, threads: int) -> _Loaded:
    raw = read_json(path / "config.json")
    positions = _max_positions(raw) or options.max_model_len
    if not positions:
        raise ServingError(Code.INVALID, f"{path}: parameter 'max_model_len': expected a length, got nothing")
    longest = min(options.max_model_len or positions, positions)
    model = HfModel(path, choose_dtype(options, device), device, longest)
    ops = choose_ops(options, device, model.specs, threads)
    with _closed_on_error(ops):
        capacity = _capacity(options, positions, model.specs, ops, path)
        model.allocate(ops, capacity.num_blocks, options.block_size)
    return _Loaded(model, ops, capacity, read_eos_token_ids(path, raw))


@contextmanager
def _closed_on_error(ops: Ops) -> Iterator[None]:
    """Until a runner owns them, nobody else gives the ops' threads back."""
    try:
        yield
    except BaseException:
        ops.close()
        raise


@contextmanager
def _bar(path: Path, num_layers: int, progress: Progress | None) -> Iterator[LayerProgress]:
    """Where the layers' progress goes: to `progress`, or to a bar on a terminal once loading takes a second."""
    hidden = progress is not None or not sys.stderr.isatty()
    with tqdm(total=num_layers, desc=f"loading {path.name}", unit="layer", delay=1, disable=hidden) as bar:

        def report(done: int, total: int) -> None:
            bar.update(done - bar.n)
            if progress is not None:
                progress("layers", done, total)

        yield report


def _max_positions(raw: dict[str, object]) -> int:
    """Under the names it has in transformers' configs; 0 where there is none."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length"):
        value = raw.get(name)
        if isinstance(value, int):
            return value
    return 0


def _capacity(options: LmOptions, positions: int, specs: list[AttentionSpec], ops: Ops, path: Path) -> Capacity:
    block_bytes = bytes_per_block(specs, options.block_size, ops.kv_dtype.itemsize)
    if ops.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(ops.device)
        weights = sum(file.stat().st_size for file in _weight_files(path))
        memory = Memory(max(0, int(free - (1 - options.gpu_memory_utilization) * total) - weights), total)
    else:
        memory = host_memory()
    return plan_capacity(options, positions, block_bytes, memory, path.name)


def _warm_up(model: PagedModel, block_size: int, capacity: Capacity) -> None:
    """Run a prompt and a token once, so that no request waits for a first run. Block 0 holds nothing of use yet."""
    for tokens in {1, min(block_size, capacity.max_model_len)}:
        positions = np.arange(tokens, dtype=np.int32)
        batch = AttentionBatch(
            query_starts=np.array([0, tokens], np.int32),
            context_lens=np.array([tokens], np.int32),
            block_table=np.zeros((1, 1), np.int32),
            positions=positions,
            slots=positions.astype(np.int64),
            max_query=tokens,
            max_context=tokens,
        )
        with torch.inference_mode():
            model.logits(model.forward(np.zeros(tokens, np.int32), batch)[-1:])


def _weight_files(path: Path) -> list[Path]:
    """A GGUF with all its parts, or a folder's safetensors."""
    if path.is_file():
        return sorted(path.parent.glob(path.name.replace("-00001-of-", "-*-of-")))
    return sorted(path.glob("*.safetensors"))


def _fingerprint_files(path: Path) -> list[Path]:
    """Settings in a folder's config.json change keys and values too; a GGUF has them inside."""
    return _weight_files(path) + ([] if path.is_file() else [path / "config.json"])
