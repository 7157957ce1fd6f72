"""Tiny random models of every family, saved as users have them, and a paged decoder driven in pieces."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.lm.batch import attention_batch
from backends.lm.dequantize import FORMATS
from backends.lm.step import StepBatch

VOCAB = 97
BLOCK = 4
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def random_rows(format_name: str, rows: int, values: int, seed: int = 0) -> np.ndarray:
    """Raw rows of a weight format with every bit pattern possible, apart from scales, which are finite and small."""
    rng = np.random.default_rng(seed)
    layout = FORMATS[format_name]
    if layout.block == 1:
        floats = rng.normal(0, 0.1, size=rows * values).astype("<f4")
        raw = {
            "F32": floats.view(np.uint8),
            "F16": floats.astype("<f2").view(np.uint8),
            "BF16": (floats.view(np.uint32) >> 16).astype("<u2").view(np.uint8),
        }[format_name]
        return raw.reshape(rows, -1)
    blocks = rng.integers(0, 256, (rows * values // layout.block, layout.block_bytes), dtype=np.uint8)
    # so that values are about 0.1 whatever the integers' range
    size = {"Q8_0": 1e-3, "Q4_0": 1e-2, "Q4_1": 1e-2, "Q5_0": 1e-2, "Q5_1": 1e-2}.get(format_name, 1e-4)
    for at in {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q6_K": [208]}.get(format_name, [0, 2]):
        scales = rng.normal(0, size, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, layout.row_bytes(values))


@pytest.fixture(scope="session", name="random_rows")
def random_rows_fixture() -> Callable[..., np.ndarray]:
    return random_rows


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Any]:
    """tiny("qwen3", sliding_window=5): a random float32 model of transformers, the same every time."""

    def make(family: str, **changes: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers
        config = transformers.AutoConfig.for_model(family, **{**_COMMON, **changes})
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():  # large enough that every part shows in the logits
                parameter.normal_(0, 0.3 if parameter.dim() > 1 else 0.5)
        return model

    return make


@pytest.fixture(scope="session")
def dense_logits() -> Callable[[Any, Sequence[int]], torch.Tensor]:
    """transformers' own logits (tokens, vocab) of one sequence."""

    def compute(model: Any, tokens: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=torch.tensor([list(tokens)])).logits[0].float()

    return compute


class Paged:
    """A paged model driven by hand: sequences with scattered blocks, brought forward in slices."""

    def __init__(self, model: Any, num_blocks: int = 64) -> None:
        self.model = model
        self._free = np.random.default_rng(7).permutation(num_blocks).tolist()
        self._blocks: dict[int, list[int]] = {}
        self._done: dict[int, int] = {}

    def step(self, slices: dict[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """sequence -> its next tokens; returns sequence -> their logits (tokens, vocab)."""
        for s, tokens in slices.items():
            self._done[s] = self._done.get(s, 0) + len(tokens)
            blocks = self._blocks.setdefault(s, [])
            while len(blocks) * BLOCK < self._done[s]:
                blocks.append(self._free.pop())
        counts = [len(tokens) for tokens in slices.values()]
        width = max(len(self._blocks[s]) for s in slices)
        table = [self._blocks[s] + [0] * (width - len(self._blocks[s])) for s in slices]
        batch = StepBatch(
            rows=np.array(list(slices), np.int32),
            tokens=np.concatenate([np.asarray(tokens, np.int32) for tokens in slices.values()]),
            query_starts=np.cumsum([0, *counts]).astype(np.int32),
            context_lens=np.array([self._done[s] for s in slices], np.int32),
            block_table=np.array(table, np.int32),
            samples=np.ones(len(slices), bool),
            num_drafts=np.zeros(len(slices), np.int32),
        )
        with torch.inference_mode():
            # a result may be overwritten by the next call
            logits = self.model.logits(self.model.forward(batch.tokens, attention_batch(batch, BLOCK))).clone()
        return dict(zip(slices, logits.split(counts), strict=True))


@pytest.fixture(scope="session")
def paged() -> type[Paged]:
    return Paged


@pytest.fixture(scope="session")
def in_pieces() -> Callable[[Any, list[list[int]]], list[torch.Tensor]]:
    """Every token's logits, with three sequences in mixed chunks and single tokens, joining at different steps."""

    def run(model: Any, sequences: list[list[int]]) -> list[torch.Tensor]:
        driver = Paged(model)
        plan = [(0, 5), (0, 1), (1, 7), (0, 1), (2, 3), (1, 1), (2, 9)]
        cuts: dict[int, int] = dict.fromkeys(range(len(sequences)), 0)
        pieces: dict[int, list[torch.Tensor]] = {s: [] for s in cuts}
        for round_ in range(100):
            slices = {}
            for s, count in plan[round_ % len(plan) :][:3]:
                tokens = sequences[s][cuts[s] : cuts[s] + count]
                if s not in slices and tokens:
                    slices[s] = tokens
                    cuts[s] += len(tokens)
            if slices:
                for s, logits in driver.step(slices).items():
                    pieces[s].append(logits)
            if all(cuts[s] == len(sequences[s]) for s in cuts):
                break
        return [torch.cat(pieces[s]) for s in cuts]

    return run


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Save a model in Hugging Face's layout."""

    def save(model: Any, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("model")
        model.save_pretrained(folder, **options)
        return folder

    return save
