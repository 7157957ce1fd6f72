"""A chunk of a prompt on its way through the model, a few layers at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from backends.lm.batch import attention_batch
from backends.lm.ops import AttentionBatch
from backends.lm.step import StepBatch, StepOutput


@runtime_checkable
class LayeredModel(Protocol):
    """A paged model whose layers can be run apart: `Decoder`."""

    num_layers: int

    def embed(self, tokens: np.ndarray) -> torch.Tensor: ...

    def advance(self, hidden: torch.Tensor, batch: AttentionBatch, first: int, end: int) -> torch.Tensor: ...


Finish = Callable[[torch.Tensor, StepBatch, AttentionBatch], StepOutput]
"""What a batch's last hidden states (T, hidden) bring."""


@dataclass(slots=True)
class _Chunk:
    batch: StepBatch
    attention: AttentionBatch
    hidden: torch.Tensor  # (T, hidden), what layer `done` takes
    done: int = 0


class LayeredChunks:
    """See `LayeredPrefill`. Bit for bit the result of the whole step, since only the order of the layers is cut.

    The model is its runner's: `loaded` gives it, or raises when it is closed.
    """

    def __init__(self, num_layers: int, block_size: int, loaded: Callable[[], LayeredModel], finish: Finish) -> None:
        self.num_layers = num_layers
        self._block_size = block_size
        self._loaded = loaded
        self._finish = finish
        self._chunk: _Chunk | None = None

    @torch.inference_mode()
    def begin(self, batch: StepBatch) -> None:
        self._chunk = _Chunk(batch, attention_batch(batch, self._block_size), self._loaded().embed(batch.tokens))

    @torch.inference_mode()
    def advance(self, num_layers: int) -> StepOutput | None:
        chunk = self._chunk
        if chunk is None:
            raise ValueError("no chunk was begun")
        end = min(chunk.done + num_layers, self.num_layers)
        chunk.hidden = self._loaded().advance(chunk.hidden, chunk.attention, chunk.done, end)
        chunk.done = end
        if chunk.hidden.device.type != "cpu":
            torch.accelerator.synchronize()  # whoever times the layers must not see only their launch
        if end < self.num_layers:
            return None
        self._chunk = None
        return self._finish(chunk.hidden, chunk.batch, chunk.attention)

    def drop(self) -> None:
        self._chunk = None
