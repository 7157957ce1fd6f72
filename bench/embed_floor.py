"""What an embedding costs without a server: transformers in a loop, as sentence-transformers runs it, in a process of its own."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

_BATCH = 32  # sentence-transformers' default


@dataclass(frozen=True, slots=True)
class FloorRun:
    """Of one pass over some texts, in seconds."""

    wall: float
    cpu: float


class Floor:
    """Owns the process, which keeps the model between runs."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the server's engines have it; the process inherits it
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _load, (folder,))

    def run(self, texts: Sequence[str], at_once: int) -> FloorRun:
        """Blocks until all texts have their vectors. `at_once` of them are known at a time, as to a server with so many
        under way; they are sorted by length and computed in batches of 32."""
        return self._pool.submit(_encode, list(texts), at_once).result()

    def close(self) -> None:
        self._pool.shutdown()


def _load(folder: Path) -> None:
    global _model, _tokenizer
    from transformers import AutoModel, AutoTokenizer

    _tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    _model = AutoModel.from_pretrained(folder, local_files_only=True).eval()


def _encode(texts: list[str], at_once: int) -> FloorRun:
    import torch

    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        for start in range(0, len(texts), at_once):
            known = sorted(texts[start : start + at_once], key=len, reverse=True)
            for first in range(0, len(known), _BATCH):
                _embed(known[first : first + _BATCH])
    return FloorRun(time.perf_counter() - wall, time.process_time() - cpu)


def _embed(texts: list[str]) -> Any:
    import torch

    inputs = _tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    states = _model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).float()
    means = (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(means, dim=-1).numpy()
