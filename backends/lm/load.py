"""From files and options to a runner that is ready: the model's parts put together."""

import logging
import sys
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from backends.api.errors import Code, ServingError
from backends.lm.capacity import Capacity, bytes_per_block, free_memory, plan_capacity
from backends.lm.checkpoint import Checkpoint, GgufWeights
from backends.lm.config_gguf import read_gguf_config
from backends.lm.config_hf import read_eos_token_ids, read_hf_config, read_json
from backends.lm.gguf import read_gguf
from backends.lm.hf_model import HfModel
from backends.lm.location import find_model
from backends.lm.model import Decoder, attention_specs
from backends.lm.ops import AttentionBatch, AttentionSpec, Ops
from backends.lm.ops_choice import choose_device, choose_dtype, choose_ops, set_threads
from backends.lm.options import LmOptions
from backends.lm.runner import LmRunner, PagedModel, RunnerLimits
from backends.lm.safetensors import SafetensorsFile

log = logging.getLogger(__name__)

Progress = Callable[[str, float, float], None]
"""Called with what is being done, how much of it is done, and of how much."""

_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of each weight file, for its fingerprint


def load_runner(folder: Path, options: LmOptions, progress: Progress | None = None) -> LmRunner:
    """The model that `options.model` names, relative to `folder`, with its KV cache allocated and kernels warm.

    Without `progress`, a terminal on stderr gets a bar when loading takes long. Raises ServingError for files or
    options that are wrong, naming them.
    """
    started = time.monotonic()
    path = find_model(options.model, folder)
    threads = set_threads(options)
    device = choose_device(options)
    ops = choose_ops(options, device)
    checkpoint = open_checkpoint(path)
    if checkpoint is None:
        model, capacity, eos = _load_hf(path, options, ops)
    else:
        model, capacity, eos = _load_own(checkpoint, path, options, ops, progress)
    _warm_up(model, options.block_size, capacity)
    limits = RunnerLimits(
        max_model_len=capacity.max_model_len,
        max_num_seqs=options.max_num_seqs,
        num_blocks=capacity.num_blocks,
        block_size=options.block_size,
        fingerprint=_fingerprint(path, type(ops).__name__, str(ops.dtype), str(ops.kv_dtype)),
        eos_token_ids=frozenset(eos),
    )
    log.info(
        "loaded %s in %.1f s: %s, %s, %d threads, %d blocks of %d tokens, max_model_len %d",
        path.name,
        time.monotonic() - started,
        type(ops).__name__,
        str(ops.dtype).removeprefix("torch."),
        threads,
        capacity.num_blocks,
        options.block_size,
        capacity.max_model_len,
    )
    return LmRunner(model, limits)


def open_checkpoint(path: Path) -> Checkpoint | None:
    """A GGUF file's or a folder's weights; None for a folder whose architecture is not ours but transformers'."""
    if path.is_file():
        file = read_gguf(path)
        return Checkpoint(read_gguf_config(file), GgufWeights(file))
    config = read_hf_config(path)
    return None if config is None else Checkpoint(config, SafetensorsFile(path))


def _load_own(
    checkpoint: Checkpoint, path: Path, options: LmOptions, ops: Ops, progress: Progress | None
) -> tuple[PagedModel, Capacity, tuple[int, ...]]:
    config = checkpoint.config
    capacity = _capacity(options, config.max_positions, attention_specs(config), ops, path)
    with tqdm(
        total=config.num_layers, desc=f"loading {path.name}", unit="layer", delay=1, disable=not _shows_bar(progress)
    ) as bar:

        def report(done: int, total: int) -> None:
            bar.update(done - bar.n)
            if progress is not None:
                progress("layers", done, total)

        model = Decoder(
            checkpoint,
            ops,
            num_blocks=capacity.num_blocks,
            block_size=options.block_size,
            max_length=capacity.max_model_len,
            progress=report,
        )
    return model, capacity, config.eos_token_ids


def _load_hf(path: Path, options: LmOptions, ops: Ops) -> tuple[PagedModel, Capacity, tuple[int, ...]]:
    raw = read_json(path / "config.json")
    positions = _max_positions(raw) or options.max_model_len
    if not positions:
        raise ServingError(Code.INVALID, f"{path}: parameter 'max_model_len': expected a length, got nothing")
    longest = min(options.max_model_len or positions, positions)
    model = HfModel(path, choose_dtype(options, ops.device), ops.device, longest)
    capacity = _capacity(options, positions, model.specs, ops, path)
    model.allocate(ops, capacity.num_blocks, options.block_size)
    return model, capacity, read_eos_token_ids(path, raw)


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
        available = max(0, int(free - (1 - options.gpu_memory_utilization) * total) - weights)
    else:
        available = free_memory()
    return plan_capacity(options, positions, block_bytes, available, path.name)


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


def _fingerprint(path: Path, *parts: str) -> str:
    """Equal for equal weights run alike: of each file its size and pieces all over it."""
    digest = blake2b("|".join(parts).encode(), digest_size=16)
    for file in _weight_files(path):
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            for at in range(0, size, max(_SAMPLE_BYTES, size // _SAMPLES)):
                opened.seek(at)
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _weight_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))


def _shows_bar(progress: Progress | None) -> bool:
    return progress is None and sys.stderr.isatty()
