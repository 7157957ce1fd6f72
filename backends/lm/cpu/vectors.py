"""LLVM instructions on vectors of 16, for the kernels that Numba's own vectoriser would not find.

`Emitter` wraps an llvmlite builder. Addresses are i8 pointers; offsets are in bytes. All vectors have 16 lanes
(one AVX-512 register of float32 or int32).
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from backends.lm.cpu.features import cpu_features

LANES = 16
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()
POINTER = I8.as_pointer()
V_I8, V_I16, V_I32, V_F16, V_F32 = (ir.VectorType(t, LANES) for t in (I8, I16, I32, ir.HalfType(), F32))
BYTE = 1


class Emitter:
    """Emits one function's instructions. Methods are named after what they compute, lane by lane."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    # Constants, addresses

    def const(self, vector: ir.Type, value: Any) -> ir.Value:
        return ir.Constant(vector, [value] * LANES)

    def at(self, base: ir.Value, offset: "int | ir.Value") -> ir.Value:
        if isinstance(offset, int):
            offset = I64(offset)
        return self.builder.gep(base, [offset], inbounds=True)

    # Memory

    def load(self, kind: ir.Type, base: ir.Value, offset: "int | ir.Value" = 0) -> ir.Value:
        pointer = self.builder.bitcast(self.at(base, offset), kind.as_pointer())
        return self.builder.load(pointer, align=BYTE if kind in (V_I8, I8) else 2 if kind in (V_I16, V_F16) else 4)

    def store(self, value: ir.Value, base: ir.Value, offset: "int | ir.Value" = 0) -> None:
        pointer = self.builder.bitcast(self.at(base, offset), value.type.as_pointer())
        self.builder.store(value, pointer, align=BYTE if value.type in (V_I8, I8) else 2 if value.type == V_I16 else 4)

    def splat(self, scalar: ir.Value) -> ir.Value:
        vector = ir.VectorType(scalar.type, LANES)
        single = self.builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
        return self.builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), ir.Constant(V_I32, [0] * LANES))

    def load_splat(self, kind: ir.Type, base: ir.Value, offset: "int | ir.Value" = 0) -> ir.Value:
        return self.splat(self.load(kind, base, offset))

    # Arithmetic

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.builder.call(function, args)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once."""
        return self.call("llvm.fma.v16f32", V_F32, [a, b, c])

    def abs(self, a: ir.Value) -> ir.Value:
        return self.call("llvm.fabs.v16f32", V_F32, [a])

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def round(self, a: ir.Value) -> ir.Value:
        """To the nearest integer, ties to even."""
        return self.call("llvm.rint.v16f32", V_F32, [a])

    def halves_to_f32(self, a: ir.Value) -> ir.Value:
        return self.builder.fpext(a, V_F32)

    def dot_bytes(self, acc: ir.Value, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
        """acc + the dot product of 4 unsigned with 4 signed bytes in each int32 lane (`vpdpbusd`)."""
        return self.call("llvm.x86.avx512.vpdpbusd.512", V_I32, [acc, unsigned, signed])

    def dot_bf16(self, acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """acc (float32) + the dot product of two bfloat16 pairs, each pair an int32 lane (`vdpbf16ps`)."""
        if cpu_features().bf16:
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", V_F32, [acc, a, b])
        (a_even, a_odd), (b_even, b_odd) = self.bf16_pairs(a), self.bf16_pairs(b)
        return self.fma(a_even, b_even, self.fma(a_odd, b_odd, acc))

    def bf16_pairs(self, a: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The lower and the upper bfloat16 of each int32 lane, as float32."""
        lower = self.builder.shl(a, self.const(V_I32, 16))
        upper = self.builder.and_(a, self.const(V_I32, 0xFFFF0000))
        return self.builder.bitcast(lower, V_F32), self.builder.bitcast(upper, V_F32)

    def to_bf16(self, a: ir.Value) -> ir.Value:
        """(float32) -> bfloat16 bits as int16, ties to even; not-a-number stays one."""
        bits = self.builder.bitcast(a, V_I32)
        odd = self.builder.and_(self.builder.lshr(bits, self.const(V_I32, 16)), self.const(V_I32, 1))
        rounded = self.builder.add(bits, self.builder.add(odd, self.const(V_I32, 0x7FFF)))
        quiet = self.builder.or_(bits, self.const(V_I32, 0x400000))
        kept = self.builder.select(self.builder.fcmp_unordered("uno", a, a), quiet, rounded)
        return self.builder.trunc(self.builder.lshr(kept, self.const(V_I32, 16)), V_I16)

    def exp(self, x: ir.Value) -> ir.Value:
        """e^x for x <= 88; exactly 1 at 0 and exactly 0 below -87, minus infinity included.

        2^n times a polynomial on |r| <= ln(2) / 2, with ln(2) in two parts (Cody and Waite); relative error below 2e-7.
        """
        builder = self.builder
        n = self.round(builder.fmul(x, self.const(V_F32, 1.4426950408889634)))
        r = self.fma(n, self.const(V_F32, -0.693359375), x)
        r = self.fma(n, self.const(V_F32, 2.12194440e-4), r)
        result = self.const(V_F32, 1 / 720)
        for coefficient in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            result = self.fma(result, r, self.const(V_F32, coefficient))
        exponent = builder.shl(builder.fptosi(n, V_I32), self.const(V_I32, 23))
        scaled = builder.bitcast(builder.add(builder.bitcast(result, V_I32), exponent), V_F32)
        small = builder.fcmp_ordered("<", x, self.const(V_F32, -87.0))
        return builder.select(small, self.const(V_F32, 0.0), scaled)

    def tanh(self, x: ir.Value) -> ir.Value:
        """1 - 2 / (e^2x + 1), with |x| limited to 20, where tanh is 1 in float32."""
        builder = self.builder
        limited = self.minimum(self.maximum(x, self.const(V_F32, -20.0)), self.const(V_F32, 20.0))
        power = self.exp(builder.fadd(limited, limited))
        ratio = builder.fdiv(self.const(V_F32, 2.0), builder.fadd(power, self.const(V_F32, 1.0)))
        return builder.fsub(self.const(V_F32, 1.0), ratio)

    # Across lanes

    def sum_i32(self, a: ir.Value) -> ir.Value:
        return self.call("llvm.vector.reduce.add.v16i32", I32, [a])

    def fold(self, a: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """All lanes combined as a balanced tree (a fixed order); the result in every lane."""
        for distance in (8, 4, 2, 1):
            lanes = ir.Constant(V_I32, [lane ^ distance for lane in range(LANES)])
            a = combine(a, self.builder.shuffle_vector(a, a, lanes))
        return a


def private_function(
    module: ir.Module, name: str, result: ir.Type, args: Sequence[ir.Type], emit: Callable[[ir.Function], None]
) -> ir.Function:
    """The function `name` of this module, emitted on first use. Never inlined: its registers are its own."""
    existing = module.globals.get(name)
    if existing is not None:
        return existing
    function = ir.Function(module, ir.FunctionType(result, args), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    emit(function)
    return function
