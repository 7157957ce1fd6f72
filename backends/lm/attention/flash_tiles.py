"""Micro-kernels of attention with an online softmax: scores to weights, weights times values.

Scores are made by the matrix micro-kernels (`cpu/tiles.py`): 16 keys of the pool lie exactly like a tile of weights.
These take it from there, for up to PANEL_ROWS query rows and a step of up to 4 groups of 16 keys.

A row sees the same instructions whatever its neighbours; a key it may not see adds an exact zero. So its result
depends neither on the batch nor on how a prompt was cut into chunks.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from backends.lm.cpu.tiles import FORMATS, TileFormat, emit_by_rows
from backends.lm.cpu.vectors import F32, I32, I64, LANES, POINTER, V_F32, V_I32, Emitter, private_function

STEP_GROUPS = 4
ROW_BYTES = 4 * LANES * STEP_GROUPS  # from one row of scores, or of weights, to the next
STATE_BYTES = 192  # a row's state: 16 partial sums, the maximum in 16 lanes, the last step's rescaling in 16 lanes
MAXIMUM, RESCALE = 64, 128
NO_MAXIMUM = -1e30  # finite, so that steps without a visible key change nothing


def _form(literal: Any) -> TileFormat:
    return next(f for f in FORMATS.values() if f.code == literal.literal_value)


def _emit_softmax(function: ir.Function, form: TileFormat, capped: bool) -> None:
    scores, weights, state, start, group_keys, low, high, scale, cap = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    e = Emitter(builder)
    hidden = e.const(V_F32, float("-inf"))
    old_maximum = e.load(V_F32, state, MAXIMUM)
    maximum, seen = old_maximum, []
    for group in range(STEP_GROUPS):
        value = builder.fmul(e.load(V_F32, scores, 64 * group), e.splat(scale))
        if capped:
            value = builder.fmul(e.tanh(builder.fdiv(value, e.splat(cap))), e.splat(cap))
        visible = _visible(e, start, group_keys, group, low, high)
        seen.append(builder.select(visible, value, hidden))
        maximum = e.maximum(maximum, seen[-1])
    maximum = e.fold(maximum, e.maximum)
    rescale = e.exp(builder.fsub(old_maximum, maximum))
    powers = [e.exp(builder.fsub(value, maximum)) for value in seen]
    total = builder.fadd(builder.fadd(powers[0], powers[1]), builder.fadd(powers[2], powers[3]))
    e.store(e.fma(e.load(V_F32, state), rescale, total), state)
    e.store(maximum, state, MAXIMUM)
    e.store(rescale, state, RESCALE)
    for group, power in enumerate(powers):
        if form.name == "f32":
            e.store(power, weights, 64 * group)
        else:
            e.store(e.to_bf16(power), weights, 32 * group)
    builder.ret_void()


def _visible(e: Emitter, start: ir.Value, group_keys: ir.Value, group: int, low: ir.Value, high: ir.Value) -> ir.Value:
    """Which lanes of a group hold keys at positions low <= p < high."""
    builder = e.builder
    first = builder.add(start, builder.mul(group_keys, I64(group)))
    end = builder.add(first, group_keys)
    end = builder.select(builder.icmp_signed("<", high, end), high, end)
    width = builder.sub(end, low)
    width = builder.select(builder.icmp_signed("<", width, I64(0)), I64(0), width)
    lanes = ir.Constant(V_I32, list(range(LANES)))
    distance = builder.add(lanes, e.splat(builder.trunc(builder.sub(first, low), I32)))
    return builder.icmp_unsigned("<", distance, e.splat(builder.trunc(width, I32)))


@intrinsic(prefer_literal=True)
def softmax_row(
    typing: Any,
    form: Any,
    capped: Any,
    scores: Any,
    weights: Any,
    state: Any,
    start: Any,
    group_keys: Any,
    low: Any,
    high: Any,
    scale: Any,
    cap: Any,
) -> Any:
    """One row's step: weights = e^(score - maximum so far) for the keys at positions low <= p < high, else 0.

    `scores` are 64 float32, `weights` 64 of the pool's type, key by key. The first key is at position `start`, each
    group holds `group_keys` of them. Updates the row's `state`. `form` and `capped` (0 or 1: cap * tanh(score / cap))
    are constants.
    """
    chosen, is_capped = _form(form), bool(capped.literal_value)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        arg_types = [POINTER] * 3 + [I64] * 4 + [F32] * 2
        name = f"softmax_{chosen.name}_{'capped' if is_capped else 'plain'}"
        emit = partial(_emit_softmax, form=chosen, capped=is_capped)
        function = private_function(builder.module, name, ir.VoidType(), arg_types, emit)
        pointers = [builder.inttoptr(value, POINTER) for value in args[2:5]]
        builder.call(function, [*pointers, *args[5:]])
        return context.get_dummy_value()

    return types.void(form, capped, *[types.intp] * 7, types.float32, types.float32), codegen


_ACCUMULATE_ARGS = [I64, POINTER, POINTER, I64, POINTER, POINTER, I64]


def _emit_accumulate(function: ir.Function, form: TileFormat, rows: int) -> None:
    """out[r, :16] = out[r, :16] * rescale[r] + weights[r] . values, column tile by column tile."""
    weights, groups, num_groups, out, state, columns = function.args
    entry = function.append_basic_block("entry")
    column_loop = function.append_basic_block("column")
    group_loop = function.append_basic_block("group")
    column_end = function.append_basic_block("column_end")
    done = function.append_basic_block("done")
    builder = ir.IRBuilder(entry)
    unit_bytes = builder.mul(columns, I64(64))
    builder.branch(column_loop)

    builder.position_at_end(column_loop)
    e = Emitter(builder)
    column = builder.phi(I64)
    column_bytes = builder.mul(column, I64(64))
    targets = [e.at(out, builder.add(column_bytes, builder.mul(unit_bytes, I64(row)))) for row in range(rows)]
    starts = [
        builder.fmul(e.load(V_F32, target), e.load(V_F32, state, STATE_BYTES * row + RESCALE))
        for row, target in enumerate(targets)
    ]
    builder.branch(group_loop)

    builder.position_at_end(group_loop)
    group = builder.phi(I64)
    sums = [builder.phi(V_F32) for _ in range(rows)]
    base = builder.inttoptr(e.load(I64, groups, builder.mul(group, I64(8))), POINTER)
    values = e.at(base, column_bytes)
    group_weight_bytes = form.row_bytes // 2  # of 16 keys
    row_weights = e.at(weights, builder.mul(group, I64(group_weight_bytes)))
    new_sums = list(sums)
    for unit in range(group_weight_bytes // 4):
        if unit:
            values = e.at(values, unit_bytes)
        value = e.load(V_F32 if form.name == "f32" else V_I32, values)
        for row in range(rows):
            offset = ROW_BYTES * row + 4 * unit
            if form.name == "f32":
                new_sums[row] = e.fma(value, e.load_splat(F32, row_weights, offset), new_sums[row])
            else:
                new_sums[row] = e.dot_bf16(new_sums[row], value, e.load_splat(I32, row_weights, offset))
    next_group = builder.add(group, I64(1))
    builder.cbranch(builder.icmp_signed("<", next_group, num_groups), group_loop, column_end)
    group.add_incoming(I64(0), column_loop)
    group.add_incoming(next_group, group_loop)
    for total, start, new in zip(sums, starts, new_sums, strict=True):
        total.add_incoming(start, column_loop)
        total.add_incoming(new, group_loop)

    builder.position_at_end(column_end)
    for target, total in zip(targets, new_sums, strict=True):
        e.store(total, target)
    next_column = builder.add(column, I64(1))
    column.add_incoming(I64(0), entry)
    column.add_incoming(next_column, column_end)
    builder.cbranch(builder.icmp_signed("<", next_column, columns), column_loop, done)
    ir.IRBuilder(done).ret_void()


@intrinsic(prefer_literal=True)
def accumulate(
    typing: Any,
    form: Any,
    rows: Any,
    weights: Any,
    groups: Any,
    num_groups: Any,
    out: Any,
    state: Any,
    columns: Any,
) -> Any:
    """accumulate(form code, rows, ...): add a step's weighted values to `out` (rows, 16 * columns) float32.

    `groups` holds the addresses of `num_groups` groups of 16 values: units of 2 keys (bfloat16) or 1 (float32) for
    each of 16 * columns features.
    """
    chosen = _form(form)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        emit = partial(emit_by_rows, form=chosen, name="accumulate", arg_types=_ACCUMULATE_ARGS, emit=_emit_accumulate)
        function = private_function(builder.module, f"accumulate_{chosen.name}", ir.VoidType(), _ACCUMULATE_ARGS, emit)
        given = [
            builder.inttoptr(value, POINTER) if kind is POINTER else value
            for value, kind in zip(args[1:], _ACCUMULATE_ARGS, strict=True)
        ]
        builder.call(function, given)
        return context.get_dummy_value()

    return types.void(form, *[types.intp] * 7), codegen
