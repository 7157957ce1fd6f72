"""The task that computes paged attention on x86: one kernel for decode and (chunked) prefill, over `paged_pool.py`'s layout.

An item of work is one kv head and up to 8 of a sequence's (token, query head) pairs, its rows; it walks the context in
steps of 4 groups of keys counted from position 0, with an online softmax in float32. Nothing in a row's arithmetic
depends on the batch, on chunking or on where blocks lie.
"""

from functools import cache
from typing import Any

from numba import carray, cfunc, float32, njit, types

from backends.lm.attention.flash_tiles import (
    MAXIMUM,
    NO_MAXIMUM,
    ROW_BYTES,
    STATE_BYTES,
    STEP_GROUPS,
    accumulate,
    softmax_row,
)
from backends.lm.attention.paged_args import (
    BLOCK_GROUPS,
    BLOCK_SIZE,
    CAP,
    CONTEXT_LENS,
    HEAD_DIM,
    HEADS,
    ITEM_STARTS,
    KEYS,
    KV_HEADS,
    OUT,
    OUT_STRIDE,
    Q_STRIDE,
    QUERY_STARTS,
    SCALE,
    SEQUENCES,
    TABLE,
    TABLE_STRIDE,
    VALUES,
    WINDOW,
    Q,
)
from backends.lm.attention.paged_pool import MAX_HEAD_DIM, columns_of, group_bytes
from backends.lm.cpu.memory import as_pointer, load_float, load_int, prefetch, stack
from backends.lm.cpu.panels import write_record
from backends.lm.cpu.team import TASK_SIGNATURE
from backends.lm.cpu.tiles import FORMATS, GROUP, PANEL_ROWS, tile

# Sizes of an item's memory on the stack, in bytes
_PANEL = 4 * MAX_HEAD_DIM * PANEL_ROWS
_SCORES = ROW_BYTES * PANEL_ROWS
_STATES = STATE_BYTES * PANEL_ROWS
_ADDRESSES = 8 * STEP_GROUPS


@njit(types.intp(types.intp, types.intp, types.intp), cache=True, nogil=True)
def _sequence_of(item_starts: int, sequences: int, item: int) -> int:
    """The sequence s with item_starts[s] <= item < item_starts[s + 1]."""
    low, high = 0, sequences
    while high - low > 1:
        middle = (low + high) // 2
        if load_int(item_starts + 8 * middle) <= item:
            low = middle
        else:
            high = middle
    return low


@njit(inline="always")
def _int32(array: int, index: int) -> int:
    return types.intp(carray(as_pointer(array + 4 * index), 1, types.int32)[0])


@njit(inline="always")
def _prefetch(start: int, size: int) -> None:
    for line in range(start, start + size, 64):
        prefetch(line)


@njit(inline="always")
def _pointers(args: int, head: int, token: int, tensor: int, stride: int) -> int:
    """Where one head of one token lies in the tensor at index `tensor`."""
    return load_int(args + 8 * tensor) + token * load_int(args + 8 * stride) + 4 * load_int(args + 8 * HEAD_DIM) * head


@njit(inline="always")
def _clear(out: int, state: int, rows: int, columns: int) -> None:
    carray(as_pointer(out), 16 * rows * columns, float32)[:] = 0
    for row in range(rows):
        of_row = carray(as_pointer(state + STATE_BYTES * row), 48, float32)
        of_row[:] = 0
        of_row[MAXIMUM // 4 : MAXIMUM // 4 + 16] = NO_MAXIMUM


@njit(inline="always")
def _pack_query(code: int, query: int, target: int, dim: int, rows: int, row_bytes: int) -> None:
    """One row of the panel that `tile` takes: records of 32 features, those of the rows side by side."""
    for group in range((dim + 31) // 32):
        write_record(code, query + 4 * GROUP * group, dim - GROUP * group, target + group * rows * row_bytes)


@njit(inline="always")
def _group_of(table: int, position: int, kv_head: int, kv_heads: int, block_size: int, block_groups: int) -> int:
    """The number in the pool of the group of keys that begins at `position`."""
    block = _int32(table, position // block_size)
    return (block * kv_heads + kv_head) * block_groups + position % block_size // 16


@njit(inline="always")
def _weigh(
    code: int,
    scores: int,
    weights: int,
    state: int,
    start: int,
    keys: int,
    high: int,
    window: int,
    scale: float,
    cap: float,
) -> None:
    """One row's scores of a step to weights; it sees the `window` positions below `high` (all with window 0)."""
    low = max(0, high - window) if window > 0 else 0
    if cap > 0:
        softmax_row(code, 1, scores, weights, state, start, keys, low, high, scale, cap)
    else:
        softmax_row(code, 0, scores, weights, state, start, keys, low, high, scale, cap)


@njit(inline="always")
def _finish(out: int, state: int, target: int, dim: int) -> None:
    """One row's result: what it added up, over the sum of its weights."""
    sums, total = carray(as_pointer(state), 16, float32), float32(0)
    for lane in range(16):
        total += sums[lane]
    inverse = float32(1) / total
    mine, result = carray(as_pointer(out), dim, float32), carray(as_pointer(target), dim, float32)
    for feature in range(dim):
        result[feature] = mine[feature] * inverse


@cache
def attend_task(form: str) -> Any:
    """The task that computes attention for the step's tokens, whose keys and values are in the pool."""
    code, row_bytes = FORMATS[form].code, FORMATS[form].row_bytes
    keys_a_unit = 1 if form == "f32" else 2

    def attend(args: int, item: int) -> int:
        sequences, item_starts = load_int(args + 8 * SEQUENCES), load_int(args + 8 * ITEM_STARTS)
        if item < 0:
            return load_int(item_starts + 8 * sequences)
        s = _sequence_of(item_starts, sequences, item)
        kv_heads = load_int(args + 8 * KV_HEADS)
        shared = load_int(args + 8 * HEADS) // kv_heads  # query heads that share a kv head
        first_token = _int32(load_int(args + 8 * QUERY_STARTS), s)
        num_tokens = _int32(load_int(args + 8 * QUERY_STARTS), s + 1) - first_token
        first_position = _int32(load_int(args + 8 * CONTEXT_LENS), s) - num_tokens
        panels = (num_tokens * shared + PANEL_ROWS - 1) // PANEL_ROWS
        kv_head, panel = divmod(item - load_int(item_starts + 8 * s), panels)
        first_row = panel * PANEL_ROWS
        rows = min(PANEL_ROWS, num_tokens * shared - first_row)

        dim, window = load_int(args + 8 * HEAD_DIM), load_int(args + 8 * WINDOW)
        columns, feature_groups = columns_of(dim), (dim + 31) // 32
        block_size, block_groups = load_int(args + 8 * BLOCK_SIZE), load_int(args + 8 * BLOCK_GROUPS)
        group_keys = min(16, block_size)
        key_bytes, value_bytes = group_bytes(dim, keys_a_unit)
        keys, values = load_int(args + 8 * KEYS), load_int(args + 8 * VALUES)
        table = load_int(args + 8 * TABLE) + s * load_int(args + 8 * TABLE_STRIDE)
        scale, cap = float32(load_float(args + 8 * SCALE)), float32(load_float(args + 8 * CAP))

        queries, out = stack(_PANEL), stack(_PANEL)
        scores, weights, state = stack(_SCORES), stack(_SCORES), stack(_STATES)
        zeros, groups = stack(64), stack(_ADDRESSES)
        carray(as_pointer(zeros), 16, float32)[:] = 0
        _clear(out, state, rows, columns)
        for row in range(rows):
            token, head = divmod(first_row + row, shared)
            query = _pointers(args, kv_head * shared + head, first_token + token, Q, Q_STRIDE)
            _pack_query(code, query, queries + row * row_bytes, dim, rows, row_bytes)

        first = first_position + first_row // shared  # positions of the first and the last row's tokens
        last = first_position + (first_row + rows - 1) // shared
        step_keys = STEP_GROUPS * group_keys
        start = max(0, first + 1 - window) // step_keys * step_keys if window > 0 else 0
        while start <= last:
            num_groups = min(STEP_GROUPS, (last - start) // group_keys + 1)
            for group in range(num_groups):
                position = start + group * group_keys
                ahead = position + step_keys
                if panels == 1 and ahead <= last:
                    index = _group_of(table, ahead, kv_head, kv_heads, block_size, block_groups)
                    _prefetch(keys + index * key_bytes, key_bytes)
                    _prefetch(values + index * value_bytes, value_bytes)
                index = _group_of(table, position, kv_head, kv_heads, block_size, block_groups)
                carray(as_pointer(groups), STEP_GROUPS, types.intp)[group] = values + index * value_bytes
                of_group = keys + index * key_bytes
                tile(code, rows, queries, of_group, zeros, feature_groups, scores + 64 * group, ROW_BYTES)
            for row in range(rows):
                high = first_position + (first_row + row) // shared + 1
                of_scores, of_weights = scores + ROW_BYTES * row, weights + ROW_BYTES * row
                of_state = state + STATE_BYTES * row
                _weigh(code, of_scores, of_weights, of_state, start, group_keys, high, window, scale, cap)
            accumulate(code, rows, weights, groups, num_groups, out, state, columns)
            start += step_keys

        for row in range(rows):
            token, head = divmod(first_row + row, shared)
            target = _pointers(args, kv_head * shared + head, first_token + token, OUT, OUT_STRIDE)
            _finish(out + 64 * columns * row, state + STATE_BYTES * row, target, dim)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True, error_model="numpy")(attend)
