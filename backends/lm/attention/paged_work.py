"""How a step's attention is shared out among threads, and the arguments that point at a step's arrays."""

from dataclasses import dataclass

import numpy as np

from backends.lm.attention.flash_tiles import STEP_GROUPS
from backends.lm.attention.paged_args import (
    CONTEXT_LENS,
    ITEM_STARTS,
    JOIN_STARTS,
    PARTIAL_STARTS,
    PARTIALS,
    QUERY_STARTS,
    SEQUENCES,
    SLOTS,
    TABLE,
    TABLE_STRIDE,
    TOKENS,
)
from backends.lm.attention.paged_panel import sum_bytes
from backends.lm.cpu.memory import aligned
from backends.lm.cpu.tiles import PANEL_ROWS, TILE
from backends.lm.ops import AttentionBatch, AttentionSpec

_SPAN = 512  # positions of the context that are summed up by themselves, then joined to those before: at most
_WHOLE = 16  # panels of a sequence from which on its spans are not shared out among threads


def span_of(block_size: int) -> int:
    """Positions of a span: whole steps, which are of whole groups of keys."""
    step = STEP_GROUPS * min(TILE, block_size)
    return _SPAN // step * step


@dataclass(frozen=True, slots=True)
class BatchArgs:
    """The arguments that point at a step's arrays, by index, and what must live as long as they are used."""

    values: dict[int, int]
    keeps: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A step's work, each (S + 1,) int64: the numbers of items, of joins and of partial results before each sequence.

    A panel is one kv head and up to PANEL_ROWS of a sequence's (token, query head) pairs. An item is a panel with all of
    its context, or with one span of it; such items leave a partial result each, and the panel's join puts them together.
    """

    item_starts: np.ndarray
    join_starts: np.ndarray
    partial_starts: np.ndarray


def share_out(spec: AttentionSpec, span: int, batch: AttentionBatch) -> Work:
    """Sequences of few panels and a long context have their spans shared out. What is computed is the same either way."""
    rows = np.diff(batch.query_starts) * (spec.num_heads // spec.num_kv_heads)
    panels = -(-rows // PANEL_ROWS) * spec.num_kv_heads
    spans = -(-batch.context_lens // span)
    is_shared = (panels < _WHOLE) & (spans > 1)
    partials = np.where(is_shared, panels * spans, 0)
    return Work(
        _before(np.where(is_shared, partials, panels)), _before(np.where(is_shared, panels, 0)), _before(partials)
    )


def _before(counts: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


class Workspace:
    """Makes a step's arguments, and owns the memory for what spans come to until they are joined: one step at a time."""

    def __init__(self, spec: AttentionSpec, span: int) -> None:
        self._spec = spec
        self._span = span
        self._partials = aligned(0)

    def batch_args(self, batch: AttentionBatch) -> BatchArgs:
        work = share_out(self._spec, self._span, batch)
        size = int(work.partial_starts[-1]) * sum_bytes.py_func(self._spec.head_dim)
        if size > len(self._partials):
            self._partials = aligned(2 * size)
        values = {
            TOKENS: len(batch.slots),
            SEQUENCES: len(batch.context_lens),
            ITEM_STARTS: work.item_starts.ctypes.data,
            JOIN_STARTS: work.join_starts.ctypes.data,
            PARTIAL_STARTS: work.partial_starts.ctypes.data,
            PARTIALS: self._partials.ctypes.data,
            QUERY_STARTS: batch.query_starts.ctypes.data,
            CONTEXT_LENS: batch.context_lens.ctypes.data,
            TABLE: batch.block_table.ctypes.data,
            TABLE_STRIDE: batch.block_table.strides[0],
            SLOTS: batch.slots.ctypes.data,
        }
        return BatchArgs(values, (work, batch, self._partials))
