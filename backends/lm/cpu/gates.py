"""Gated activations of a feed-forward block, act(gate) * up, straight into panels (or float32 rows)."""

from functools import cache, partial
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from backends.lm.cpu.memory import load_int
from backends.lm.cpu.panels import emit_record, load_group
from backends.lm.cpu.team import TASK_SIGNATURE
from backends.lm.cpu.tiles import FORMATS, GROUP, PANEL_ROWS, TileFormat
from backends.lm.cpu.vectors import I64, POINTER, V_F32, Emitter, private_function

# int64 arguments by index. GATE_UP is (tokens, 2 * FEATURES) float32; OUT panels, or rows when PLAIN is 1.
GATE_UP, GATE_UP_STRIDE, FEATURES, TOKENS, OUT, PLAIN = range(6)
NUM_ARGS = 6

_TOKENS_AN_ITEM = 8

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}


def _silu(e: Emitter, x: ir.Value) -> ir.Value:
    """x / (1 + e^-x). The exponent is limited to 87, where the result is below 1e-36 anyway."""
    negative = e.minimum(e.builder.fneg(x), e.const(V_F32, 87.0))
    return e.builder.fdiv(x, e.builder.fadd(e.exp(negative), e.const(V_F32, 1.0)))


def _gelu(e: Emitter, x: ir.Value) -> ir.Value:
    """x / 2 * (1 + erf(x / sqrt 2)), with erf of Abramowitz and Stegun 7.1.26 (absolute error below 1.5e-7)."""
    builder = e.builder
    z = builder.fmul(x, e.const(V_F32, 0.7071067811865476))
    size = e.abs(z)
    one = e.const(V_F32, 1.0)
    t = builder.fdiv(one, e.fma(size, e.const(V_F32, 0.3275911), one))
    polynomial = e.const(V_F32, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = e.fma(polynomial, t, e.const(V_F32, coefficient))
    power = e.exp(builder.fneg(builder.fmul(size, size)))
    erf = builder.fsub(one, builder.fmul(builder.fmul(polynomial, t), power))
    positive = builder.fcmp_ordered(">=", z, e.const(V_F32, 0.0))
    signed = builder.select(positive, erf, builder.fneg(erf))
    return builder.fmul(builder.fmul(x, e.const(V_F32, 0.5)), builder.fadd(one, signed))


def _gelu_tanh(e: Emitter, x: ir.Value) -> ir.Value:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    builder = e.builder
    one = e.const(V_F32, 1.0)
    square = builder.fmul(x, x)
    inner = builder.fmul(x, e.fma(square, e.const(V_F32, 0.044715), one))
    tanh = e.tanh(builder.fmul(inner, e.const(V_F32, 0.7978845608028654)))
    return builder.fmul(builder.fmul(x, e.const(V_F32, 0.5)), builder.fadd(one, tanh))


_EMITTERS = [_silu, _gelu, _gelu_tanh]


def _emit_gate(function: ir.Function, form: TileFormat, activation: int) -> None:
    gate, up, valid, record = function.args
    e = Emitter(ir.IRBuilder(function.append_basic_block("entry")))
    gates, ups = load_group(e, gate, valid), load_group(e, up, valid)
    products = [e.builder.fmul(_EMITTERS[activation](e, g), u) for g, u in zip(gates, ups, strict=True)]
    emit_record(e, form, products, record)
    e.builder.ret_void()


@intrinsic(prefer_literal=True)
def gate_record(typing: Any, form: Any, activation: Any, gate: Any, up: Any, valid: Any, record: Any) -> Any:
    """One record of act(gate) * up. `form` and `activation` are constants; `valid` of the 32 features are there."""
    chosen = next(f for f in FORMATS.values() if f.code == form.literal_value)
    which = activation.literal_value

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        function = private_function(
            builder.module,
            f"gate_{chosen.name}_{which}",
            ir.VoidType(),
            [POINTER, POINTER, I64, POINTER],
            partial(_emit_gate, form=chosen, activation=which),
        )
        gate_at, up_at, record_at = (builder.inttoptr(args[i], POINTER) for i in (2, 3, 5))
        builder.call(function, [gate_at, up_at, args[4], record_at])
        return context.get_dummy_value()

    return types.void(form, activation, *[types.intp] * 4), codegen


@cache
def gate_task(form: str, activation: str) -> Any:
    """The task that writes act(gate) * up as panels of `form`; of "f32" also as plain rows of whole groups."""
    code, row_bytes, which = FORMATS[form].code, FORMATS[form].row_bytes, ACTIVATIONS[activation]

    def gated(args: int, item: int) -> int:
        tokens = load_int(args + 8 * TOKENS)
        if item < 0:
            return (tokens + _TOKENS_AN_ITEM - 1) // _TOKENS_AN_ITEM
        features, out = load_int(args + 8 * FEATURES), load_int(args + 8 * OUT)
        panel_rows = 1 if load_int(args + 8 * PLAIN) else PANEL_ROWS
        groups = (features + GROUP - 1) // GROUP
        for token in range(item * _TOKENS_AN_ITEM, min(tokens, (item + 1) * _TOKENS_AN_ITEM)):
            gate = load_int(args + 8 * GATE_UP) + token * load_int(args + 8 * GATE_UP_STRIDE)
            up = gate + 4 * features
            first = token // panel_rows * panel_rows
            in_panel = min(panel_rows, tokens - first)
            record = out + (first * groups + token - first) * row_bytes
            for group in range(groups):
                start = 4 * GROUP * group
                target = record + group * in_panel * row_bytes
                gate_record(code, which, gate + start, up + start, features - GROUP * group, target)
        return 0

    return cfunc(TASK_SIGNATURE, cache=True)(gated)
