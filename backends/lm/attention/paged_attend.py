"""The tasks that compute paged attention on x86: one kernel for decode and (chunked) prefill, over `paged_pool.py`'s layout.

A panel (`paged_panel.py`) walks its context in spans, each by itself with an online softmax in float32, in steps of 4
groups of keys; the spans are joined in order. An item of work is a panel with its whole context, or one span of it
where there are few panels (`paged_work.py`): then another task joins them. Spans are counted from position 0, so
nothing in a row's arithmetic depends on the batch, on chunking, on sharing or on where blocks lie.
"""

from functools import cache
from typing import Any

from numba import carray, cfunc, float32, njit, types

from backends.lm.attention.flash_tiles import ROW_BYTES, STATE_BYTES, STEP_GROUPS, accumulate, softmax_row
from backends.lm.attention.paged_args import (
    BLOCK_GROUPS,
    BLOCK_SIZE,
    CAP,
    CONTEXT_LENS,
    HEAD_DIM,
    ITEM_STARTS,
    JOIN_STARTS,
    KEYS,
    KV_HEADS,
    PARTIAL_STARTS,
    PARTIALS,
    SCALE,
    SEQUENCES,
    SPAN,
    TABLE,
    TABLE_STRIDE,
    VALUES,
    WINDOW,
)
from backends.lm.attention.paged_panel import (
    SUM_BYTES,
    Panel,
    clear,
    find,
    int32_at,
    join,
    pack_queries,
    panel_of,
    position_of,
    states_of,
    sum_bytes,
    write_result,
)
from backends.lm.attention.paged_pool import MAX_HEAD_DIM, columns_of, group_bytes
from backends.lm.cpu.memory import as_pointer, load_float, load_int, prefetch, stack
from backends.lm.cpu.team import TASK_SIGNATURE
from backends.lm.cpu.tiles import FORMATS, PANEL_ROWS, tile

# Sizes of an item's memory on the stack, in bytes
_QUERIES = 4 * MAX_HEAD_DIM * PANEL_ROWS
_SCORES = ROW_BYTES * PANEL_ROWS
_ADDRESSES = 8 * STEP_GROUPS


@njit(inline="always")
def _prefetch(start: int, size: int) -> None:
    for line in range(start, start + size, 64):
        prefetch(line)


@njit(inline="always")
def _group_of(args: int, table: int, kv_head: int, position: int) -> int:
    """The number in the pool of the group of keys that begins at `position`."""
    block_size = load_int(args + 8 * BLOCK_SIZE)
    block = int32_at(table, position // block_size)
    first = (block * load_int(args + 8 * KV_HEADS) + kv_head) * load_int(args + 8 * BLOCK_GROUPS)
    return first + position % block_size // 16


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
def _first_seen(args: int, panel: Panel) -> int:
    """The first position that any row of the panel sees."""
    window = load_int(args + 8 * WINDOW)
    return max(0, position_of(panel, 0) + 1 - window) if window > 0 else 0


@njit(inline="always")
def _spans_seen(args: int, panel: Panel) -> tuple[int, int]:
    """The number of the first span that a row of the panel sees, and of the one after the last."""
    span = load_int(args + 8 * SPAN)
    return _first_seen(args, panel) // span, position_of(panel, panel.rows - 1) // span + 1


@njit(inline="always")
def _sum_up(
    code: int, keys_a_unit: int, args: int, sequence: int, panel: Panel, queries: int, span: int, total: int
) -> None:
    """total = what the panel's rows see of span number `span`. Uses memory on the caller's stack."""
    scores, weights, zeros, groups = stack(_SCORES), stack(_SCORES), stack(64), stack(_ADDRESSES)
    dim, window = load_int(args + 8 * HEAD_DIM), load_int(args + 8 * WINDOW)
    columns, feature_groups = columns_of(dim), (dim + 31) // 32
    key_bytes, value_bytes = group_bytes(dim, keys_a_unit)
    keys, values = load_int(args + 8 * KEYS), load_int(args + 8 * VALUES)
    table = load_int(args + 8 * TABLE) + sequence * load_int(args + 8 * TABLE_STRIDE)
    scale, cap = float32(load_float(args + 8 * SCALE)), float32(load_float(args + 8 * CAP))
    group_keys = min(16, load_int(args + 8 * BLOCK_SIZE))
    step_keys = STEP_GROUPS * group_keys
    carray(as_pointer(zeros), 16, float32)[:] = 0
    clear(total, panel.rows, columns)
    states = states_of(total, columns)

    last = min(position_of(panel, panel.rows - 1), (span + 1) * load_int(args + 8 * SPAN) - 1)
    start = max(span * load_int(args + 8 * SPAN), _first_seen(args, panel) // step_keys * step_keys)
    while start <= last:
        num_groups = min(STEP_GROUPS, (last - start) // group_keys + 1)
        for group in range(num_groups):
            position = start + group * group_keys
            ahead = position + step_keys
            if panel.num_panels == 1 and ahead <= last:
                index = _group_of(args, table, panel.kv_head, ahead)
                _prefetch(keys + index * key_bytes, key_bytes)
                _prefetch(values + index * value_bytes, value_bytes)
            index = _group_of(args, table, panel.kv_head, position)
            carray(as_pointer(groups), STEP_GROUPS, types.intp)[group] = values + index * value_bytes
            of_group = keys + index * key_bytes
            tile(code, panel.rows, queries, of_group, zeros, feature_groups, scores + 64 * group, ROW_BYTES)
        for row in range(panel.rows):
            high = position_of(panel, row) + 1
            of_scores, of_weights = scores + ROW_BYTES * row, weights + ROW_BYTES * row
            _weigh(code, of_scores, of_weights, states + STATE_BYTES * row, start, group_keys, high, window, scale, cap)
        accumulate(code, panel.rows, weights, groups, num_groups, total, states, columns)
        start += step_keys


@njit(inline="always")
def _num_spans(args: int, sequence: int) -> int:
    length, span = int32_at(load_int(args + 8 * CONTEXT_LENS), sequence), load_int(args + 8 * SPAN)
    return (length + span - 1) // span


@njit(inline="always")
def _partial(args: int, sequence: int, index: int) -> int:
    """Where the result of a sequence's item at `index` lies until it is joined."""
    number = load_int(load_int(args + 8 * PARTIAL_STARTS) + 8 * sequence) + index
    return load_int(args + 8 * PARTIALS) + number * sum_bytes(load_int(args + 8 * HEAD_DIM))


@njit(inline="always")
def _is_shared(args: int, sequence: int) -> bool:
    starts = load_int(args + 8 * PARTIAL_STARTS) + 8 * sequence
    return load_int(starts + 8) > load_int(starts)


@cache
def attend_task(form: str) -> Any:
    """The task that attends for the step's tokens, whose keys and values are in the pool."""
    code, row_bytes = FORMATS[form].code, FORMATS[form].row_bytes
    keys_a_unit = 1 if form == "f32" else 2

    def attend(args: int, item: int) -> int:
        sequences, item_starts = load_int(args + 8 * SEQUENCES), load_int(args + 8 * ITEM_STARTS)
        if item < 0:
            return load_int(item_starts + 8 * sequences)
        sequence = find(item_starts, sequences, item)
        index = item - load_int(item_starts + 8 * sequence)
        is_shared = _is_shared(args, sequence)
        spans = _num_spans(args, sequence) if is_shared else 1
        panel = panel_of(args, sequence, index // spans)
        first, end = _spans_seen(args, panel)
        if is_shared:
            first, end = max(first, index % spans), min(end, index % spans + 1)
        if first >= end:
            return 0
        queries, total, part = stack(_QUERIES), stack(SUM_BYTES), stack(SUM_BYTES)
        pack_queries(code, row_bytes, args, panel, queries)
        target = _partial(args, sequence, index) if is_shared else total
        for span in range(first, end):
            into = target if span == first else part
            _sum_up(code, keys_a_unit, args, sequence, panel, queries, span, into)
            if span > first:
                join(total, part, panel.rows, columns_of(load_int(args + 8 * HEAD_DIM)))
        if not is_shared:
            write_result(args, panel, total)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True, error_model="numpy")(attend)


@cache
def join_task() -> Any:
    """The task that joins what the spans of shared panels came to."""

    def join_spans(args: int, item: int) -> int:
        sequences, join_starts = load_int(args + 8 * SEQUENCES), load_int(args + 8 * JOIN_STARTS)
        if item < 0:
            return load_int(join_starts + 8 * sequences)
        sequence = find(join_starts, sequences, item)
        index = item - load_int(join_starts + 8 * sequence)
        panel = panel_of(args, sequence, index)
        spans = _num_spans(args, sequence)
        first, end = _spans_seen(args, panel)
        total = _partial(args, sequence, index * spans + first)
        for span in range(first + 1, end):
            part = _partial(args, sequence, index * spans + span)
            join(total, part, panel.rows, columns_of(load_int(args + 8 * HEAD_DIM)))
        write_result(args, panel, total)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True, error_model="numpy")(join_spans)
