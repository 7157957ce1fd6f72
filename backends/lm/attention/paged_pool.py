"""The pool of keys and values on x86: how it is laid out, and the task that writes a step's tokens into it.

It holds 4-byte units: a float32, or two bfloat16. Of each (block, kv head), `G` groups of up to 16 keys:

    keys    (blocks, kv heads, G, units of a head, 16 keys)     a unit is 1 or 2 neighbouring features
    values  (blocks, kv heads, G, 16 keys / keys a unit, D)     a unit is 1 or 2 neighbouring keys

with D filled up with zeros to whole tiles, and for keys to whole groups of 32,

so keys lie like a tile of weights whose columns are keys, and values like tiles whose input features are keys.
Block sizes below 16 leave lanes of their only group unused.
"""

from functools import cache
from typing import Any

from numba import carray, cfunc, float32, njit, types, uint16, uint32

from backends.lm.attention.paged_args import (
    BLOCK_GROUPS,
    BLOCK_SIZE,
    HEAD_DIM,
    K_STRIDE,
    KEYS,
    KV_HEADS,
    SLOTS,
    TOKENS,
    V_STRIDE,
    VALUES,
    K,
    V,
)
from backends.lm.cpu.memory import as_pointer, load_int, stack
from backends.lm.cpu.team import TASK_SIGNATURE

MAX_HEAD_DIM = 256
_ONE_PAIR = 8 * MAX_HEAD_DIM  # bytes of a key and a value in float32
_TOKENS_AN_ITEM = 16
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
def columns_of(dim: int) -> int:
    return (dim + 15) // 16


@njit(inline="always")
def group_bytes(dim: int, keys_a_unit: int) -> tuple[int, int]:
    """Bytes of a group of 16 keys, padded to whole groups of 32 features, and of 16 values, to whole tiles of 16."""
    return 64 * ((dim + 31) // 32 * 32 // keys_a_unit), 16 // keys_a_unit * 64 * columns_of(dim)


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
        key_bytes, value_bytes = group_bytes(dim, keys_a_unit)
        unit_bytes = 64 * columns_of(dim)
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
