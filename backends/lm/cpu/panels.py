"""Activations as the micro-kernels read them: panels of up to PANEL_ROWS rows, interleaved group by group.

Panel p holds rows 8p to 8p + n - 1. Within it, the records of group 0 of all n rows come first, then those of
group 1, and so on. A record is 32 features of one row:

    q4, q8  32 int8, scale s (float32), s * sum of the int8 (float32), -128 * that sum (int32), 4 bytes unused
    bf16    32 bfloat16
    f32     32 float32

The int8 are x / s rounded, s = max|x| / 127 over the group: nothing is shared between rows or with earlier calls.
A row that ends within a group is filled up with zeros.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from backends.lm.cpu.tiles import FORMATS, GROUP, PANEL_ROWS, TileFormat
from backends.lm.cpu.vectors import F32, I32, I64, LANES, POINTER, V_F32, V_I8, V_I32, Emitter, private_function


def panel_bytes(form: TileFormat, rows: int, features: int) -> int:
    """The size of all panels of `rows` activations."""
    return rows * -(-features // GROUP) * form.row_bytes


def load_group(e: Emitter, x: ir.Value, valid: ir.Value) -> list[ir.Value]:
    """Two vectors of a row's next 32 features; those from `valid` on are zero and not touched."""
    halves = []
    mask_type = ir.VectorType(ir.IntType(1), LANES)
    for half in range(2):
        lanes = ir.Constant(V_I32, list(range(LANES * half, LANES * half + LANES)))
        mask = e.builder.icmp_signed("<", lanes, e.splat(e.builder.trunc(valid, I32)))
        assert mask.type == mask_type
        pointer = e.builder.bitcast(e.at(x, 64 * half), V_F32.as_pointer())
        name = "llvm.masked.load.v16f32.p0"
        function = e.builder.module.globals.get(name) or ir.Function(
            e.builder.module, ir.FunctionType(V_F32, [pointer.type, I32, mask_type, V_F32]), name
        )
        halves.append(e.builder.call(function, [pointer, I32(4), mask, e.const(V_F32, 0.0)]))
    return halves


def _emit_int8(e: Emitter, halves: list[ir.Value], record: ir.Value) -> None:
    builder = e.builder
    largest = e.fold(e.maximum(e.abs(halves[0]), e.abs(halves[1])), e.maximum)
    scale = builder.fmul(largest, e.const(V_F32, 1 / 127))
    is_zero = builder.fcmp_ordered("==", largest, e.const(V_F32, 0.0))
    divisor = builder.select(is_zero, e.const(V_F32, 1.0), largest)
    inverse = builder.fdiv(e.const(V_F32, 127.0), divisor)
    total = None
    for half, values in enumerate(halves):
        rounded = builder.fptosi(e.round(builder.fmul(values, inverse)), V_I32)
        e.store(builder.trunc(rounded, V_I8), record, LANES * half)
        total = rounded if total is None else builder.add(total, rounded)
    count = e.sum_i32(total)
    scale_0 = builder.extract_element(scale, I32(0))
    e.store(scale_0, record, 32)
    e.store(builder.fmul(scale_0, builder.sitofp(count, F32)), record, 36)
    e.store(builder.mul(count, I32(-128)), record, 40)


def emit_record(e: Emitter, form: TileFormat, halves: list[ir.Value], record: ir.Value) -> None:
    """Store two vectors of 16 features as one record."""
    if form.row_bytes == 48:
        _emit_int8(e, halves, record)
        return
    for half, values in enumerate(halves):
        kept = values if form.name == "f32" else e.to_bf16(values)
        e.store(kept, record, form.row_bytes // 2 * half)


def _emit_write(function: ir.Function, form: TileFormat) -> None:
    x, valid, record = function.args
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")))
    emit_record(e, form, load_group(e, x, valid), record)
    e.builder.ret_void()


@intrinsic(prefer_literal=True)
def write_record(typing: Any, form: Any, x: Any, valid: Any, record: Any) -> Any:
    """write_record(form code, x, valid, record): one group of one row; `valid` features of it are there."""
    chosen = next(f for f in FORMATS.values() if f.code == form.literal_value)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        function = private_function(
            builder.module,
            f"record_{chosen.name}",
            ir.VoidType(),
            [POINTER, I64, POINTER],
            partial(_emit_write, form=chosen),
        )
        x_at, record_at = builder.inttoptr(args[1], POINTER), builder.inttoptr(args[3], POINTER)
        builder.call(function, [x_at, args[2], record_at])
        return context.get_dummy_value()

    return types.void(form, *[types.intp] * 3), codegen


@njit(inline="always")
def write_row(form: int, row_bytes: int, x: int, features: int, panels: int, row: int, rows: int) -> None:
    """Write the float32 row at address `x` as row `row` of `rows` into the panels at address `panels`."""
    groups = (features + GROUP - 1) // GROUP
    first = row // PANEL_ROWS * PANEL_ROWS
    in_panel = min(PANEL_ROWS, rows - first)
    record = panels + first * groups * row_bytes + (row - first) * row_bytes
    for group in range(groups):
        write_record(form, x + 4 * GROUP * group, features - GROUP * group, record + group * in_panel * row_bytes)
