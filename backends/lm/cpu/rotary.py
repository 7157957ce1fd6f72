"""Rotary position embedding, in place, halves paired as in Hugging Face's layout."""

from functools import cache
from typing import Any

from numba import carray, cfunc, float32, njit, types

from backends.lm.cpu.memory import as_pointer, load_int
from backends.lm.cpu.team import TASK_SIGNATURE

# int64 arguments by index. COS and SIN are (max length, DIM / 2) float32, POSITIONS (tokens,) int32.
Q, Q_STRIDE, HEADS, K, K_STRIDE, KV_HEADS, DIM, COS, SIN, POSITIONS, TOKENS = range(11)
NUM_ARGS = 11

_TOKENS_AN_ITEM = 8


@njit(types.void(*[types.intp] * 5), cache=True, nogil=True)
def _rotate(x: int, heads: int, dim: int, cos: int, sin: int) -> None:
    """(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) for each head of one token."""
    half = dim // 2
    c, s = carray(as_pointer(cos), half, float32), carray(as_pointer(sin), half, float32)
    for head in range(heads):
        first = carray(as_pointer(x + 4 * dim * head), half, float32)
        second = carray(as_pointer(x + 4 * dim * head + 4 * half), half, float32)
        for i in range(half):
            a, b = first[i], second[i]
            first[i] = a * c[i] - b * s[i]
            second[i] = b * c[i] + a * s[i]


@cache
def rotary_task() -> Any:
    """The task that rotates q and k of a step's tokens."""

    def rotary(args: int, item: int) -> int:
        tokens = load_int(args + 8 * TOKENS)
        if item < 0:
            return (tokens + _TOKENS_AN_ITEM - 1) // _TOKENS_AN_ITEM
        dim = load_int(args + 8 * DIM)
        positions = carray(as_pointer(load_int(args + 8 * POSITIONS)), tokens, types.int32)
        for token in range(item * _TOKENS_AN_ITEM, min(tokens, (item + 1) * _TOKENS_AN_ITEM)):
            row = 2 * dim * types.intp(positions[token])
            cos, sin = load_int(args + 8 * COS) + row, load_int(args + 8 * SIN) + row
            q = load_int(args + 8 * Q) + token * load_int(args + 8 * Q_STRIDE)
            k = load_int(args + 8 * K) + token * load_int(args + 8 * K_STRIDE)
            _rotate(q, load_int(args + 8 * HEADS), dim, cos, sin)
            _rotate(k, load_int(args + 8 * KV_HEADS), dim, cos, sin)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True)(rotary)
