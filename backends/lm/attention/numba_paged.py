"""Paged attention on x86: one kernel for decode and (chunked) prefill, compiled on the machine it runs on.

The pool holds 4-byte units: a float32, or two bfloat16. Of each (block, kv head), `G` groups of up to 16 keys:

    keys    (blocks, kv heads, G, units of a head, 16 keys)     a unit is 1 or 2 neighbouring features
    values  (blocks, kv heads, G, 16 keys / keys a unit, D)     a unit is 1 or 2 neighbouring keys

with D filled up with zeros to whole tiles, and for keys to whole groups of 32,

so keys lie like a tile of weights whose columns are keys, and values like tiles whose input features are keys.
Block sizes below 16 leave lanes of their only group unused.

An item of work is one kv head and up to 8 of a sequence's (token, query head) pairs; it walks the context in steps
of 4 groups counted from position 0, with an online softmax in float32. Nothing in a row's arithmetic depends on
the batch, on chunking or on where blocks lie.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, float32, njit, types, uint16, uint32

from backends.api.errors import Code, ServingError
from backends.lm.attention.flash_tiles import (
    MAXIMUM,
    NO_MAXIMUM,
    ROW_BYTES,
    STATE_BYTES,
    STEP_GROUPS,
    accumulate,
    softmax_row,
)
from backends.lm.cpu.memory import aligned, as_pointer, load_float, load_int, prefetch, stack
from backends.lm.cpu.panels import write_record
from backends.lm.cpu.team import TASK_SIGNATURE, Tape, Team
from backends.lm.cpu.tiles import FORMATS, GROUP, PANEL_ROWS, TILE, tile
from backends.lm.ops import AttentionBatch, AttentionSpec

MAX_HEAD_DIM = 256

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

# Sizes of an item's memory on the stack, in bytes
_ONE_PAIR = 8 * MAX_HEAD_DIM  # a key and a value
_PANEL = 4 * MAX_HEAD_DIM * PANEL_ROWS
_SCORES = ROW_BYTES * PANEL_ROWS
_STATES = STATE_BYTES * PANEL_ROWS
_ADDRESSES = 8 * STEP_GROUPS

_TOKENS_AN_ITEM = 16  # when keys and values are written
_LARGEST = 3e38


@njit(inline="always")
def _finite(value: float) -> float:
    """What may lie in a pool: a masked key adds 0 times its value, which must be 0."""
    if value != value:  # not a number
        return _LARGEST
    return min(max(value, -_LARGEST), _LARGEST)


@njit(inline="always")
def _bf16(bits: int) -> int:
    return (bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16)


@njit(types.void(types.intp, types.intp, types.intp, types.intp), cache=True, nogil=True)
def _write_bf16(source: int, keys: int, values: int, dim: int) -> None:
    """One head of one token. `source` is float32 finite: dim of k, then dim of v; addresses are the token's own."""
    bits = carray(as_pointer(source), 2 * dim, uint32)
    for unit in range(dim // 2):
        pair = carray(as_pointer(keys + 64 * unit), 1, uint32)
        pair[0] = _bf16(bits[2 * unit]) | (_bf16(bits[2 * unit + 1]) << uint32(16))
    target = carray(as_pointer(values), 2 * dim, uint16)
    for feature in range(dim):
        target[2 * feature] = uint16(_bf16(bits[dim + feature]))


@njit(types.void(types.intp, types.intp, types.intp, types.intp), cache=True, nogil=True)
def _write_f32(source: int, keys: int, values: int, dim: int) -> None:
    numbers = carray(as_pointer(source), 2 * dim, float32)
    for feature in range(dim):
        carray(as_pointer(keys + 64 * feature), 1, float32)[0] = numbers[feature]
    target = carray(as_pointer(values), dim, float32)
    for feature in range(dim):
        target[feature] = numbers[dim + feature]


@njit(types.void(types.intp, types.intp, types.intp), cache=True, nogil=True)
def _copy_finite(source: int, target: int, dim: int) -> None:
    given, kept = carray(as_pointer(source), dim, float32), carray(as_pointer(target), dim, float32)
    for feature in range(dim):
        kept[feature] = _finite(given[feature])


@njit(inline="always")
def _columns(dim: int) -> int:
    return (dim + 15) // 16


@njit(inline="always")
def _group_bytes(dim: int, keys_a_unit: int) -> tuple[int, int]:
    """Bytes of a group of 16 keys, padded to whole groups of 32 features, and of 16 values, to whole tiles of 16."""
    return 64 * ((dim + 31) // 32 * 32 // keys_a_unit), 16 // keys_a_unit * 64 * _columns(dim)


@cache
def write_task(form: str) -> Any:
    """The task that writes a step's keys and values to their slots."""
    is_f32 = int(form == "f32")
    keys_a_unit = 2 - is_f32

    def write(args: int, item: int) -> int:
        tokens = load_int(args + 8 * TOKENS)
        if item < 0:
            return (tokens + _TOKENS_AN_ITEM - 1) // _TOKENS_AN_ITEM
        heads, dim = load_int(args + 8 * KV_HEADS), load_int(args + 8 * HEAD_DIM)
        block_size, block_groups = load_int(args + 8 * BLOCK_SIZE), load_int(args + 8 * BLOCK_GROUPS)
        key_bytes, value_bytes = _group_bytes(dim, keys_a_unit)
        unit_bytes = 64 * _columns(dim)
        both = stack(_ONE_PAIR)
        for token in range(item * _TOKENS_AN_ITEM, min(tokens, (item + 1) * _TOKENS_AN_ITEM)):
            slot = load_int(load_int(args + 8 * SLOTS) + 8 * token)
            offset = slot % block_size
            lane = offset % 16
            k = load_int(args + 8 * K) + token * load_int(args + 8 * K_STRIDE)
            v = load_int(args + 8 * V) + token * load_int(args + 8 * V_STRIDE)
            for head in range(heads):
                group = (slot // block_size * heads + head) * block_groups + offset // 16
                keys = load_int(args + 8 * KEYS) + group * key_bytes + 4 * lane
                values = load_int(args + 8 * VALUES) + group * value_bytes
                _copy_finite(k + 4 * dim * head, both, dim)
                _copy_finite(v + 4 * dim * head, both + 4 * dim, dim)
                if is_f32:
                    _write_f32(both, keys, values + unit_bytes * lane, dim)
                else:
                    _write_bf16(both, keys, values + unit_bytes * (lane // 2) + 2 * (lane % 2), dim)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True, error_model="numpy")(write)


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


@cache
def attend_task(form: str) -> Any:
    """The task that computes attention for the step's tokens, whose keys and values are in the pool."""
    code, row_bytes = FORMATS[form].code, FORMATS[form].row_bytes
    keys_a_unit = 1 if form == "f32" else 2

    def attend(args: int, item: int) -> int:
        sequences = load_int(args + 8 * SEQUENCES)
        item_starts = load_int(args + 8 * ITEM_STARTS)
        if item < 0:
            return load_int(item_starts + 8 * sequences)
        s = _sequence_of(item_starts, sequences, item)
        heads, kv_heads = load_int(args + 8 * HEADS), load_int(args + 8 * KV_HEADS)
        shared = heads // kv_heads  # query heads that share a kv head
        first_token = _int32(load_int(args + 8 * QUERY_STARTS), s)
        num_tokens = _int32(load_int(args + 8 * QUERY_STARTS), s + 1) - first_token
        first_position = _int32(load_int(args + 8 * CONTEXT_LENS), s) - num_tokens
        panels = (num_tokens * shared + PANEL_ROWS - 1) // PANEL_ROWS
        kv_head, panel = divmod(item - load_int(item_starts + 8 * s), panels)
        first_row = panel * PANEL_ROWS
        rows = min(PANEL_ROWS, num_tokens * shared - first_row)

        dim = load_int(args + 8 * HEAD_DIM)
        columns, feature_groups = _columns(dim), (dim + 31) // 32
        block_size, block_groups = load_int(args + 8 * BLOCK_SIZE), load_int(args + 8 * BLOCK_GROUPS)
        group_keys = min(16, block_size)
        key_bytes, value_bytes = _group_bytes(dim, keys_a_unit)
        keys, values = load_int(args + 8 * KEYS), load_int(args + 8 * VALUES)
        table = load_int(args + 8 * TABLE) + s * load_int(args + 8 * TABLE_STRIDE)
        window = load_int(args + 8 * WINDOW)
        scale, cap = float32(load_float(args + 8 * SCALE)), float32(load_float(args + 8 * CAP))

        queries = stack(_PANEL)
        scores, weights = stack(_SCORES), stack(_SCORES)
        out, state = stack(_PANEL), stack(_STATES)
        zeros, groups = stack(64), stack(_ADDRESSES)
        carray(as_pointer(zeros), 16, float32)[:] = 0
        carray(as_pointer(out), 16 * rows * columns, float32)[:] = 0
        for row in range(rows):
            of_row = carray(as_pointer(state + STATE_BYTES * row), 48, float32)
            of_row[:] = 0
            of_row[MAXIMUM // 4 : MAXIMUM // 4 + 16] = NO_MAXIMUM
            token, head = divmod(first_row + row, shared)
            q = load_int(args + 8 * Q) + (first_token + token) * load_int(args + 8 * Q_STRIDE)
            q += 4 * dim * (kv_head * shared + head)
            for group in range(feature_groups):
                record = queries + (group * rows + row) * row_bytes
                write_record(code, q + 4 * GROUP * group, dim - GROUP * group, record)

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
                    index = (_int32(table, ahead // block_size) * kv_heads + kv_head) * block_groups
                    index += ahead % block_size // 16
                    _prefetch(keys + index * key_bytes, key_bytes)
                    _prefetch(values + index * value_bytes, value_bytes)
                block = _int32(table, position // block_size)
                index = (block * kv_heads + kv_head) * block_groups + position % block_size // 16
                carray(as_pointer(groups), STEP_GROUPS, types.intp)[group] = values + index * value_bytes
                tile(
                    code, rows, queries, keys + index * key_bytes, zeros, feature_groups, scores + 64 * group, ROW_BYTES
                )
            for row in range(rows):
                high = first_position + (first_row + row) // shared + 1
                low = max(0, high - window) if window > 0 else 0
                of_scores, of_weights = scores + ROW_BYTES * row, weights + ROW_BYTES * row
                of_state = state + STATE_BYTES * row
                if cap > 0:
                    softmax_row(code, 1, of_scores, of_weights, of_state, start, group_keys, low, high, scale, cap)
                else:
                    softmax_row(code, 0, of_scores, of_weights, of_state, start, group_keys, low, high, scale, cap)
            accumulate(code, rows, weights, groups, num_groups, out, state, columns)
            start += step_keys

        for row in range(rows):
            token, head = divmod(first_row + row, shared)
            target = load_int(args + 8 * OUT) + (first_token + token) * load_int(args + 8 * OUT_STRIDE)
            result = carray(as_pointer(target + 4 * dim * (kv_head * shared + head)), dim, float32)
            sums = carray(as_pointer(state + STATE_BYTES * row), 16, float32)
            total = float32(0)
            for lane in range(16):
                total += sums[lane]
            inverse = float32(1) / total
            mine = carray(as_pointer(out + 64 * columns * row), dim, float32)
            for feature in range(dim):
                result[feature] = mine[feature] * inverse
        return 0

    return cfunc(TASK_SIGNATURE, cache=True, error_model="numpy")(attend)


class NumbaPagedAttention:
    """One layer's pool and its attention. `kv_form` is "bf16" or "f32". The result lives until the next call.

    Raises ServingError(UNSUPPORTED) for a head size that is odd or above 256, and for a block size
    that is neither below 16 nor a multiple of it.
    """

    def __init__(self, spec: AttentionSpec, num_blocks: int, block_size: int, kv_form: str, team: Team) -> None:
        if spec.head_dim % 2 or spec.head_dim > MAX_HEAD_DIM:
            raise ServingError(
                Code.UNSUPPORTED,
                f"CPU attention takes heads of 2, 4, ... {MAX_HEAD_DIM} features, got {spec.head_dim}",
            )
        if block_size > TILE and block_size % TILE:
            raise ServingError(
                Code.UNSUPPORTED, f"CPU attention takes blocks of up to 16 or 32, 48, ... tokens, got {block_size}"
            )
        self.spec = spec
        self._team = team
        groups = num_blocks * spec.num_kv_heads * -(-block_size // TILE)
        keys_a_unit = 1 if kv_form == "f32" else 2
        key_bytes, value_bytes = _group_bytes.py_func(spec.head_dim, keys_a_unit)
        self._keys, self._values = aligned(groups * key_bytes), aligned(groups * value_bytes)
        self.args = np.zeros(NUM_ARGS, dtype=np.int64)
        self._set(
            {
                KEYS: self._keys.ctypes.data,
                VALUES: self._values.ctypes.data,
                HEADS: spec.num_heads,
                KV_HEADS: spec.num_kv_heads,
                HEAD_DIM: spec.head_dim,
                BLOCK_SIZE: block_size,
                BLOCK_GROUPS: -(-block_size // TILE),
                WINDOW: spec.window,
                OUT_STRIDE: 4 * spec.num_heads * spec.head_dim,
            }
        )
        self.args.view(np.float64)[[SCALE, CAP]] = spec.scale, spec.softcap
        self.tape = Tape([(write_task(kv_form), self.args), (attend_task(kv_form), self.args)])
        self._out = torch.empty(0, spec.num_heads * spec.head_dim)
        self._batch: AttentionBatch | None = None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        tokens = q.shape[0]
        if len(self._out) < tokens:
            self._out = torch.empty(max(tokens, 2 * len(self._out)), self._out.shape[1])
            self.args[OUT] = self._out.data_ptr()
        if batch is not self._batch:
            self._batch = batch
            self._batch_args = batch_args(self.spec, batch)
            self._set(self._batch_args.values)
        rows = [_rows(x) for x in (q, k, v)]
        args = self.args
        args[Q], args[K], args[V] = (x.data_ptr() for x in rows)
        args[Q_STRIDE], args[K_STRIDE], args[V_STRIDE] = (4 * x.stride(0) for x in rows)
        self._team.run(self.tape)
        return self._out[:tokens].to(q.dtype)

    def _set(self, arguments: dict[int, int]) -> None:
        for index, value in arguments.items():
            self.args[index] = value


def _rows(x: torch.Tensor) -> torch.Tensor:
    """(T, heads, D) as float32 whose tokens are each contiguous."""
    x = x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


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
