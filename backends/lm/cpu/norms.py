"""Root-mean-square norms, alone or with the residual sum before them, to float32 rows or straight into panels."""

from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, float32, njit, types

from backends.lm.cpu.memory import as_pointer, load_float, load_int
from backends.lm.cpu.panels import write_row
from backends.lm.cpu.team import TASK_SIGNATURE
from backends.lm.cpu.tiles import FORMATS

# Arguments by index (int64, but EPS float64). A token has HEADS vectors of DIM features, side by side; strides are
# bytes from token to token. RESIDUAL 0: none. WEIGHT 0: no norm, the sum alone is written.
X, X_STRIDE, RESIDUAL, RESIDUAL_STRIDE, WEIGHT, EPS, OUT, OUT_STRIDE, TOKENS, HEADS, DIM = range(11)
NUM_ARGS = 11

_TOKENS_AN_ITEM = 8

# What a sum of squares may be reordered by: the order is then fixed by the number of features alone.
_VECTOR_SUM = {"reassoc", "contract", "nsz"}


@njit(types.float32(types.intp, types.intp), cache=True, nogil=True, fastmath=_VECTOR_SUM, error_model="numpy")
def _mean_square(x: int, dim: int) -> float:
    values = carray(as_pointer(x), dim, float32)
    total = float32(0)
    for feature in range(dim):
        total += values[feature] * values[feature]
    return total / float32(dim)


@njit(types.void(types.intp, types.intp, types.intp), cache=True, nogil=True)
def add_row(x: int, residual: int, dim: int) -> None:
    """residual += x."""
    values, sums = carray(as_pointer(x), dim, float32), carray(as_pointer(residual), dim, float32)
    for feature in range(dim):
        sums[feature] += values[feature]


@njit(
    types.void(types.intp, types.intp, types.float64, types.intp, types.intp),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def norm_row(x: int, weight: int, eps: float, out: int, dim: int) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight; `out` may be `x`."""
    factor = float32(1) / np.sqrt(_mean_square(x, dim) + float32(eps))
    values, weights = carray(as_pointer(x), dim, float32), carray(as_pointer(weight), dim, float32)
    result = carray(as_pointer(out), dim, float32)
    for feature in range(dim):
        result[feature] = values[feature] * factor * weights[feature]


@cache
def norm_task() -> Any:
    """The task that writes norm(x), or norm(residual += x), as float32 (tokens, heads * dim)."""

    def norm(args: int, item: int) -> int:
        tokens = load_int(args + 8 * TOKENS)
        if item < 0:
            return (tokens + _TOKENS_AN_ITEM - 1) // _TOKENS_AN_ITEM
        heads, dim = load_int(args + 8 * HEADS), load_int(args + 8 * DIM)
        weight, eps = load_int(args + 8 * WEIGHT), load_float(args + 8 * EPS)
        residual = load_int(args + 8 * RESIDUAL)
        for token in range(item * _TOKENS_AN_ITEM, min(tokens, (item + 1) * _TOKENS_AN_ITEM)):
            source = load_int(args + 8 * X) + token * load_int(args + 8 * X_STRIDE)
            target = load_int(args + 8 * OUT) + token * load_int(args + 8 * OUT_STRIDE)
            if residual != 0:
                total = residual + token * load_int(args + 8 * RESIDUAL_STRIDE)
                add_row(source, total, heads * dim)
                source = total
            for head in range(heads):
                norm_row(source + 4 * dim * head, weight, eps, target + 4 * dim * head, dim)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True)(norm)


@cache
def norm_to_panels_task(form: str) -> Any:
    """As `norm_task` with one head, but into panels at OUT, for the linear layer that comes next.

    The rows of x are overwritten with the norm on the way: they must be a buffer nobody reads again.
    """
    code, row_bytes = FORMATS[form].code, FORMATS[form].row_bytes

    def norm(args: int, item: int) -> int:
        tokens = load_int(args + 8 * TOKENS)
        if item < 0:
            return (tokens + _TOKENS_AN_ITEM - 1) // _TOKENS_AN_ITEM
        dim, residual, out = load_int(args + 8 * DIM), load_int(args + 8 * RESIDUAL), load_int(args + 8 * OUT)
        weight, eps = load_int(args + 8 * WEIGHT), load_float(args + 8 * EPS)
        for token in range(item * _TOKENS_AN_ITEM, min(tokens, (item + 1) * _TOKENS_AN_ITEM)):
            row = load_int(args + 8 * X) + token * load_int(args + 8 * X_STRIDE)
            source = row
            if residual != 0:
                source = residual + token * load_int(args + 8 * RESIDUAL_STRIDE)
                add_row(row, source, dim)
            norm_row(source, weight, eps, row, dim)
            write_row(code, row_bytes, row, dim, out, token, tokens)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True)(norm)
