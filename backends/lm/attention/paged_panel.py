"""A panel of attention on x86: one kv head and up to PANEL_ROWS (token, query head) pairs of a sequence, its rows.

Its queries are packed once; what its rows have summed up lies in memory as a sum: `PANEL_ROWS` rows of `16 * columns`
float32, then their states (`flash_tiles.py`). Functions here are inlined into the tasks.
"""

from math import exp
from typing import NamedTuple

from numba import carray, float32, njit, types

from backends.lm.attention.flash_tiles import MAXIMUM, NO_MAXIMUM, STATE_BYTES
from backends.lm.attention.paged_args import (
    CONTEXT_LENS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    OUT,
    OUT_STRIDE,
    Q_STRIDE,
    QUERY_STARTS,
    Q,
)
from backends.lm.attention.paged_pool import MAX_HEAD_DIM, columns_of
from backends.lm.cpu.memory import as_pointer, load_int
from backends.lm.cpu.panels import write_record
from backends.lm.cpu.tiles import GROUP, PANEL_ROWS

SUM_BYTES = (4 * MAX_HEAD_DIM + STATE_BYTES) * PANEL_ROWS  # at most


class Panel(NamedTuple):
    """`num_panels` of a kv head there are in its sequence."""

    kv_head: int
    shared: int  # query heads that share it
    first_row: int
    rows: int
    first_token: int  # of the sequence, in the batch
    first_position: int  # of that token
    num_panels: int


@njit(inline="always")
def sum_bytes(dim: int) -> int:
    return (64 * columns_of(dim) + STATE_BYTES) * PANEL_ROWS


@njit(inline="always")
def int32_at(array: int, index: int) -> int:
    return types.intp(carray(as_pointer(array + 4 * index), 1, types.int32)[0])


@njit(types.intp(types.intp, types.intp, types.intp), cache=True, nogil=True)
def find(starts: int, count: int, item: int) -> int:
    """The i below `count` with starts[i] <= item < starts[i + 1]."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if load_int(starts + 8 * middle) <= item:
            low = middle
        else:
            high = middle
    return low


@njit(inline="always")
def panel_of(args: int, sequence: int, index: int) -> Panel:
    """The panel at `index` of a sequence's."""
    kv_heads = load_int(args + 8 * KV_HEADS)
    shared = load_int(args + 8 * HEADS) // kv_heads
    first_token = int32_at(load_int(args + 8 * QUERY_STARTS), sequence)
    num_tokens = int32_at(load_int(args + 8 * QUERY_STARTS), sequence + 1) - first_token
    first_position = int32_at(load_int(args + 8 * CONTEXT_LENS), sequence) - num_tokens
    count = (num_tokens * shared + PANEL_ROWS - 1) // PANEL_ROWS
    kv_head = index // count
    first_row = index % count * PANEL_ROWS
    rows = min(PANEL_ROWS, num_tokens * shared - first_row)
    return Panel(kv_head, shared, first_row, rows, first_token, first_position, count)


@njit(inline="always")
def position_of(panel: Panel, row: int) -> int:
    """Of the token that a row of the panel belongs to."""
    return panel.first_position + (panel.first_row + row) // panel.shared


@njit(inline="always")
def _address(args: int, panel: Panel, row: int, tensor: int, stride: int) -> int:
    """Where a row's token and head lie in the tensor at index `tensor`."""
    token, head = divmod(panel.first_row + row, panel.shared)
    start = load_int(args + 8 * tensor) + (panel.first_token + token) * load_int(args + 8 * stride)
    return start + 4 * load_int(args + 8 * HEAD_DIM) * (panel.kv_head * panel.shared + head)


@njit(inline="always")
def pack_queries(code: int, row_bytes: int, args: int, panel: Panel, queries: int) -> None:
    """The panel that `tile` takes: records of 32 features, those of the rows side by side."""
    dim = load_int(args + 8 * HEAD_DIM)
    for row in range(panel.rows):
        query = _address(args, panel, row, Q, Q_STRIDE)
        for group in range((dim + 31) // 32):
            record = queries + (group * panel.rows + row) * row_bytes
            write_record(code, query + 4 * GROUP * group, dim - GROUP * group, record)


@njit(inline="always")
def states_of(total: int, columns: int) -> int:
    return total + 64 * columns * PANEL_ROWS


@njit(types.void(types.intp, types.intp, types.intp), cache=True, nogil=True)
def clear(total: int, rows: int, columns: int) -> None:
    carray(as_pointer(total), 16 * rows * columns, float32)[:] = 0
    for row in range(rows):
        of_row = carray(as_pointer(states_of(total, columns) + STATE_BYTES * row), STATE_BYTES // 4, float32)
        of_row[:] = 0
        of_row[MAXIMUM // 4 : MAXIMUM // 4 + 16] = NO_MAXIMUM


@njit(types.void(types.intp, types.intp, types.intp, types.intp), cache=True, nogil=True)
def join(total: int, part: int, rows: int, columns: int) -> None:
    """Add what `part` summed up to `total`, both brought to the larger of their maxima."""
    for row in range(rows):
        mine = carray(as_pointer(states_of(total, columns) + STATE_BYTES * row), STATE_BYTES // 4, float32)
        other = carray(as_pointer(states_of(part, columns) + STATE_BYTES * row), STATE_BYTES // 4, float32)
        maximum = max(mine[MAXIMUM // 4], other[MAXIMUM // 4])
        scale = float32(exp(mine[MAXIMUM // 4] - maximum))
        other_scale = float32(exp(other[MAXIMUM // 4] - maximum))
        for lane in range(16):
            mine[lane] = mine[lane] * scale + other[lane] * other_scale
            mine[MAXIMUM // 4 + lane] = maximum
        sums = carray(as_pointer(total + 64 * columns * row), 16 * columns, float32)
        added = carray(as_pointer(part + 64 * columns * row), 16 * columns, float32)
        for feature in range(16 * columns):
            sums[feature] = sums[feature] * scale + added[feature] * other_scale


@njit(inline="always")
def write_result(args: int, panel: Panel, total: int) -> None:
    """Each row's sum over the sum of its weights."""
    dim = load_int(args + 8 * HEAD_DIM)
    columns = columns_of(dim)
    for row in range(panel.rows):
        weights = carray(as_pointer(states_of(total, columns) + STATE_BYTES * row), 16, float32)
        weight = float32(0)
        for lane in range(16):
            weight += weights[lane]
        inverse = float32(1) / weight
        sums = carray(as_pointer(total + 64 * columns * row), dim, float32)
        result = carray(as_pointer(_address(args, panel, row, OUT, OUT_STRIDE)), dim, float32)
        for feature in range(dim):
            result[feature] = sums[feature] * inverse
