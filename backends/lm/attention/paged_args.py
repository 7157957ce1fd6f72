"""What the tasks of paged attention are given: an array of integers, by index, and the part of it that a step changes."""

from dataclasses import dataclass

import numpy as np

from backends.lm.cpu.tiles import PANEL_ROWS
from backends.lm.ops import AttentionBatch, AttentionSpec

# Arguments by index (int64, but SCALE and CAP float64)
(
    Q,
    K,
    V,
    Q_STRIDE,
    K_STRIDE,
    V_STRIDE,
    OUT,
    OUT_STRIDE,
    KEYS,
    VALUES,
    TOKENS,
    SEQUENCES,
    ITEM_STARTS,
    QUERY_STARTS,
    CONTEXT_LENS,
    TABLE,
    TABLE_STRIDE,
    SLOTS,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    BLOCK_SIZE,
    BLOCK_GROUPS,
    WINDOW,
    SCALE,
    CAP,
) = range(26)
NUM_ARGS = 26
BATCH_ARGS = (TOKENS, SEQUENCES, ITEM_STARTS, QUERY_STARTS, CONTEXT_LENS, TABLE, TABLE_STRIDE, SLOTS)


@dataclass(frozen=True, slots=True)
class BatchArgs:
    """The arguments that point at a step's arrays, by index, and what must live as long as they are used."""

    values: dict[int, int]
    keeps: tuple[object, ...]


def batch_args(spec: AttentionSpec, batch: AttentionBatch) -> BatchArgs:
    starts = item_starts(spec, batch)
    values = {
        TOKENS: len(batch.slots),
        SEQUENCES: len(batch.context_lens),
        ITEM_STARTS: starts.ctypes.data,
        QUERY_STARTS: batch.query_starts.ctypes.data,
        CONTEXT_LENS: batch.context_lens.ctypes.data,
        TABLE: batch.block_table.ctypes.data,
        TABLE_STRIDE: batch.block_table.strides[0],
        SLOTS: batch.slots.ctypes.data,
    }
    return BatchArgs(values, (starts, batch))


def item_starts(spec: AttentionSpec, batch: AttentionBatch) -> np.ndarray:
    """(S + 1,) int64: the number of work items before each sequence."""
    rows = np.diff(batch.query_starts) * (spec.num_heads // spec.num_kv_heads)
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(-(-rows // PANEL_ROWS) * spec.num_kv_heads, out=starts[1:])
    return starts
