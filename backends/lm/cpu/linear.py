"""Linear layers: activations into panels, then every panel times every tile of packed weights."""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import cfunc

from backends.lm.cpu.memory import Arena, aligned, load_int
from backends.lm.cpu.packing import pack
from backends.lm.cpu.panels import panel_bytes, write_row
from backends.lm.cpu.team import TASK_SIGNATURE, Tape, Team
from backends.lm.cpu.tiles import FORMATS, GROUP, PANEL_ROWS, TILE, tile

if TYPE_CHECKING:
    from backends.lm.weights import Weight

# int64 arguments of both tasks, by index
X, X_STRIDE, ROWS, FEATURES, PANELS, WEIGHTS, BIAS, TILES, TILES_AN_ITEM, Y, Y_STRIDE = range(11)
NUM_ARGS = 11

_ROWS_AN_ITEM = 8  # when activations are converted
_ROW_BLOCK = 256  # rows that pass over an item's tiles together: their panels stay in the L2 cache


@cache
def convert_task(form: str) -> Any:
    """The task that writes float32 activations (rows, features) into panels of `form`."""
    code, row_bytes = FORMATS[form].code, FORMATS[form].row_bytes

    def convert(args: int, item: int) -> int:
        rows = load_int(args + 8 * ROWS)
        if item < 0:
            return (rows + _ROWS_AN_ITEM - 1) // _ROWS_AN_ITEM
        x, stride = load_int(args + 8 * X), load_int(args + 8 * X_STRIDE)
        features, panels = load_int(args + 8 * FEATURES), load_int(args + 8 * PANELS)
        for row in range(item * _ROWS_AN_ITEM, min(rows, (item + 1) * _ROWS_AN_ITEM)):
            write_row(code, row_bytes, x + row * stride, features, panels, row, rows)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True)(convert)


@cache
def multiply_task(form: str) -> Any:
    """The task that multiplies panels with the tiles of a weight; an item is a run of tiles."""
    code, row_bytes, tile_bytes = FORMATS[form].code, FORMATS[form].row_bytes, FORMATS[form].tile_bytes

    def multiply(args: int, item: int) -> int:
        tiles, an_item = load_int(args + 8 * TILES), load_int(args + 8 * TILES_AN_ITEM)
        if item < 0:
            return (tiles + an_item - 1) // an_item
        rows, panels = load_int(args + 8 * ROWS), load_int(args + 8 * PANELS)
        groups = (load_int(args + 8 * FEATURES) + GROUP - 1) // GROUP
        weights, bias = load_int(args + 8 * WEIGHTS), load_int(args + 8 * BIAS)
        y, stride = load_int(args + 8 * Y), load_int(args + 8 * Y_STRIDE)
        for block in range(0, rows, _ROW_BLOCK):
            for column in range(item * an_item, min(tiles, (item + 1) * an_item)):
                w, b = weights + column * groups * tile_bytes, bias + 64 * column
                for first in range(block, min(rows, block + _ROW_BLOCK), PANEL_ROWS):
                    x = panels + first * groups * row_bytes
                    target = y + first * stride + 64 * column
                    tile(code, min(PANEL_ROWS, rows - first), x, w, b, groups, target, stride)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True)(multiply)


def tiles_an_item(tiles: int, num_threads: int) -> int:
    """How many tiles a thread takes at once: eight turns each, so that the last one costs little waiting."""
    return max(1, tiles // (8 * num_threads))


class PackedLinear:
    """y = x W^T + b with packed weights. A row's result does not depend on the other rows.

    The result lives in a buffer of this object until its next call.
    """

    def __init__(
        self, form: str, weights: "list[Weight]", biases: "list[torch.Tensor | None]", team: Team, arena: Arena
    ) -> None:
        self.form = FORMATS[form]
        self.in_features = weights[0].shape[1]
        self.out_features = sum(weight.shape[0] for weight in weights)
        self.num_tiles = -(-self.out_features // TILE)
        self.padded_features = self.num_tiles * TILE
        self.weights = pack(form, weights, arena)
        self.bias = aligned(self.padded_features, np.float32)
        self._set_bias(weights, biases)
        self._team = team
        self.args = np.zeros(NUM_ARGS, dtype=np.int64)
        self.args[FEATURES] = self.in_features
        self.args[WEIGHTS] = self.weights.ctypes.data
        self.args[BIAS] = self.bias.ctypes.data
        self.args[TILES] = self.num_tiles
        self.args[TILES_AN_ITEM] = tiles_an_item(self.num_tiles, team.num_threads)
        self.tape = Tape([(convert_task(form), self.args), (multiply_task(form), self.args)])
        self._capacity = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(T, in_features) -> (T, out_features), both float32."""
        rows = x.shape[0]
        if rows > self._capacity:
            self._grow(rows)
        args = self.args
        args[X] = x.data_ptr()
        args[X_STRIDE] = 4 * x.stride(0)
        args[ROWS] = rows
        self._team.run(self.tape)
        return self._y[:rows, : self.out_features]

    def _grow(self, rows: int) -> None:
        self._capacity = max(rows, 2 * self._capacity)
        self._panels = aligned(panel_bytes(self.form, self._capacity, self.in_features))
        self._y = torch.from_numpy(aligned(self._capacity * self.padded_features, np.float32)).view(
            self._capacity, self.padded_features
        )
        self.args[PANELS] = self._panels.ctypes.data
        self.args[Y] = self._y.data_ptr()
        self.args[Y_STRIDE] = 4 * self._y.stride(0)

    def _set_bias(self, weights: "list[Weight]", biases: "list[torch.Tensor | None]") -> None:
        start = 0
        for weight, bias in zip(weights, biases, strict=True):
            if bias is not None:
                self.bias[start : start + weight.shape[0]] = bias.float().numpy()
            start += weight.shape[0]
