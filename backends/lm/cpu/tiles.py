"""The matrix micro-kernels: a few rows of activations times 16 output columns.

Weights are packed in tiles of 16 columns (`packing.py`), activations in panels of up to PANEL_ROWS rows
(`panels.py`); both advance along the input features in groups of 32. One Python function emits the kernel of
each (format, number of rows). Within a kernel every row sees the same instructions in the same order whatever
the number of rows, and no row sees another: **a row's result does not depend on the batch it is in**.

Formats, with bytes a group of a tile and bytes a group of an activation row:

    q4    320, 48    w = d * q + m, q in 0..15; activations int8 with a scale a group
    q8    544, 48    w = d * q, stored as q + 128 in 0..255
    bf16  1024, 64   pairs of bfloat16
    f32   2048, 128
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from backends.lm.cpu.vectors import F32, I32, I64, LANES, POINTER, V_F16, V_F32, V_I32, Emitter, private_function

GROUP = 32  # input features
TILE = LANES  # output columns
PANEL_ROWS = 8  # measured: 4 rows reach 94 % of the rate of 16, 8 rows 98 %; more need registers and code


@dataclass(frozen=True, slots=True)
class TileFormat:
    name: str
    code: int
    tile_bytes: int  # of one group of a tile
    row_bytes: int  # of one group of one activation row


FORMATS = {
    "q4": TileFormat("q4", 0, 320, 48),
    "q8": TileFormat("q8", 1, 544, 48),
    "bf16": TileFormat("bf16", 2, 1024, 64),
    "f32": TileFormat("f32", 3, 2048, 128),
}

Rows = list[ir.Value]


def _dot_groups(e: Emitter, x: ir.Value, row: int, start: ir.Value, quads: list[ir.Value]) -> ir.Value:
    """start + the integer dot product of a row's 32 int8 with 8 vectors of 4 unsigned bytes a column."""
    total = start
    for index, quad in enumerate(quads):
        total = e.dot_bytes(total, quad, e.load_splat(I32, x, row + 4 * index))
    return e.builder.sitofp(total, V_F32)


def _group_q4(e: Emitter, x: ir.Value, w: ir.Value, acc: Rows) -> Rows:
    low_bits = e.const(V_I32, 0x0F0F0F0F)
    nibbles = [e.load(V_I32, w, 64 * part) for part in range(4)]
    quads = [e.builder.and_(n, low_bits) for n in nibbles]
    quads += [e.builder.and_(e.builder.lshr(n, e.const(V_I32, 4)), low_bits) for n in nibbles]
    d = e.halves_to_f32(e.load(V_F16, w, 256))
    m = e.halves_to_f32(e.load(V_F16, w, 288))
    result = []
    for index, total in enumerate(acc):
        row = 48 * index
        dot = _dot_groups(e, x, row, e.const(V_I32, 0), quads)
        scaled = e.builder.fmul(dot, e.load_splat(F32, x, row + 32))
        total = e.fma(m, e.load_splat(F32, x, row + 36), total)
        result.append(e.fma(scaled, d, total))
    return result


def _group_q8(e: Emitter, x: ir.Value, w: ir.Value, acc: Rows) -> Rows:
    quads = [e.load(V_I32, w, 64 * part) for part in range(8)]
    d = e.halves_to_f32(e.load(V_F16, w, 512))
    result = []
    for index, total in enumerate(acc):
        row = 48 * index
        dot = _dot_groups(e, x, row, e.load_splat(I32, x, row + 40), quads)
        scaled = e.builder.fmul(dot, e.load_splat(F32, x, row + 32))
        result.append(e.fma(scaled, d, total))
    return result


def _group_bf16(e: Emitter, x: ir.Value, w: ir.Value, acc: Rows) -> Rows:
    for pair in range(GROUP // 2):
        weights = e.load(V_I32, w, 64 * pair)
        acc = [e.dot_bf16(total, weights, e.load_splat(I32, x, 64 * row + 4 * pair)) for row, total in enumerate(acc)]
    return acc


def _group_f32(e: Emitter, x: ir.Value, w: ir.Value, acc: Rows) -> Rows:
    for feature in range(GROUP):
        weights = e.load(V_F32, w, 64 * feature)
        acc = [e.fma(weights, e.load_splat(F32, x, 128 * row + 4 * feature), total) for row, total in enumerate(acc)]
    return acc


_GROUPS: dict[str, Callable[[Emitter, ir.Value, ir.Value, Rows], Rows]] = {
    "q4": _group_q4,
    "q8": _group_q8,
    "bf16": _group_bf16,
    "f32": _group_f32,
}


def _emit_tile(function: ir.Function, form: TileFormat, rows: int) -> None:
    """y[r, :16] = bias + sum over groups of x[r] . w, for `rows` rows whose groups lie side by side."""
    x, w, bias, groups, y, stride = function.args
    entry = function.append_basic_block("entry")
    loop = function.append_basic_block("groups")
    done = function.append_basic_block("done")
    builder = ir.IRBuilder(entry)
    start = Emitter(builder).load(V_F32, bias)
    builder.branch(loop)

    builder.position_at_end(loop)
    e = Emitter(builder)
    x_at, w_at, left = builder.phi(POINTER), builder.phi(POINTER), builder.phi(I64)
    sums = [builder.phi(V_F32) for _ in range(rows)]
    new_sums = _GROUPS[form.name](e, x_at, w_at, list(sums))
    new_left = builder.sub(left, I64(1))
    carried = [
        (x_at, x, e.at(x_at, form.row_bytes * rows)),
        (w_at, w, e.at(w_at, form.tile_bytes)),
        (left, groups, new_left),
        *((total, start, new) for total, new in zip(sums, new_sums, strict=True)),
    ]
    for phi, first, following in carried:
        phi.add_incoming(first, entry)
        phi.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed(">", new_left, I64(0)), loop, done)

    builder.position_at_end(done)
    for row, total in enumerate(new_sums):
        e.store(total, y, builder.mul(stride, I64(row)))
    builder.ret_void()


_TILE_ARGS = [I64, POINTER, POINTER, POINTER, I64, POINTER, I64]


def emit_by_rows(
    function: ir.Function,
    form: TileFormat,
    name: str,
    arg_types: list[ir.Type],
    emit: Callable[..., None],
) -> None:
    """Emit kernels for 1 to PANEL_ROWS rows, and a `function` (rows, ...) that calls the one for its rows."""
    rows, *rest = function.args
    entry = function.append_basic_block("entry")
    other = function.append_basic_block("other")
    ir.IRBuilder(other).unreachable()
    cases = ir.IRBuilder(entry).switch(rows, other)
    for count in range(1, PANEL_ROWS + 1):
        block = function.append_basic_block(f"rows_{count}")
        builder = ir.IRBuilder(block)
        kernel = private_function(
            builder.module,
            f"{name}_{form.name}_{count}",
            ir.VoidType(),
            arg_types[1:],
            partial(emit, form=form, rows=count),
        )
        builder.call(kernel, rest)
        builder.ret_void()
        cases.add_case(I64(count), block)


@intrinsic(prefer_literal=True)
def tile(typing: Any, form: Any, rows: Any, x: Any, w: Any, bias: Any, groups: Any, y: Any, stride: Any) -> Any:
    """tile(form code, rows, x, w, bias, groups, y, stride): y[:rows, :16] = bias + x . w for one panel and tile.

    `form` is a constant. `rows` is 1 to PANEL_ROWS, `groups` a count, `stride` the bytes from one row of `y` to
    the next; the rest are addresses.
    """
    chosen = next(f for f in FORMATS.values() if f.code == form.literal_value)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = partial(emit_by_rows, form=chosen, name="tile", arg_types=_TILE_ARGS, emit=_emit_tile)
        function = private_function(builder.module, f"tile_{chosen.name}", ir.VoidType(), _TILE_ARGS, emit)
        given = [
            builder.inttoptr(value, POINTER) if kind is POINTER else value
            for value, kind in zip(args[1:], _TILE_ARGS, strict=True)
        ]
        builder.call(function, given)
        return context.get_dummy_value()

    return types.void(form, *[types.intp] * 7), codegen
