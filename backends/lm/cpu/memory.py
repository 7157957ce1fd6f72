"""Addresses, atomics and waiting, for kernels that share memory between threads without Python.

All functions here are for use inside Numba-compiled code. An address is an `intp`; offsets are in bytes.
"""

import contextlib
import mmap
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from backends.lm.cpu.vectors import I64

_HUGE_PAGE = 2 << 20


def _pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def load_int(typing: Any, address: Any) -> Any:
    """The int64 at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load(_pointer(builder, args[0], I64))

    return types.intp(types.intp), codegen


@intrinsic
def load_float(typing: Any, address: Any) -> Any:
    """The float64 at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load(_pointer(builder, args[0], ir.DoubleType()))

    return types.float64(types.intp), codegen


@intrinsic
def atomic_load(typing: Any, address: Any) -> Any:
    """The int64 at `address`, and all that its writer wrote before it."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.load_atomic(_pointer(builder, args[0], I64), "acquire", 8)

    return types.intp(types.intp), codegen


@intrinsic
def atomic_store(typing: Any, address: Any, value: Any) -> Any:
    """Write an int64 after everything written before it."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        builder.store_atomic(args[1], _pointer(builder, args[0], I64), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def atomic_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address`; returns what it was before."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.atomic_rmw("add", _pointer(builder, args[0], I64), args[1], "seq_cst")

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the processor that this thread is spinning."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        function_type = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse2.pause"
        function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def compare_and_swap(typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write `value` at `address` if `expected` is there; whether it was."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        pointer = _pointer(builder, args[0], I64)
        return builder.extract_value(builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst"), 1)

    return types.boolean(types.intp, types.intp, types.intp), codegen


@intrinsic
def call_task(typing: Any, function: Any, args: Any, item: Any) -> Any:
    """Call the compiled task at address `function` with the address of its arguments and an item."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> ir.Value:
        function_type = ir.FunctionType(I64, [I64, I64])
        pointer = builder.inttoptr(given[0], function_type.as_pointer())
        return builder.call(pointer, [given[1], given[2]])

    return types.intp(types.intp, types.intp, types.intp), codegen


@intrinsic
def as_pointer(typing: Any, address: Any) -> Any:
    """`address` as numba.carray takes it: carray(as_pointer(a), shape, dtype)."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), codegen


def aligned(size: int, dtype: Any = np.uint8) -> np.ndarray:
    """A zeroed flat array of `size` elements whose first byte lies on a multiple of 64."""
    width = np.dtype(dtype).itemsize
    raw = np.zeros(size * width + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * width].view(dtype)


class Arena:
    """Zeroed memory for what is read from end to end in each step, in huge pages where the system gives them.

    Weights in 4 KB pages cost a fifth of a single row's time in address translation. Lives as long as its arrays.
    """

    _CHUNK = 32 << 20

    def __init__(self) -> None:
        self._free = np.empty(0, dtype=np.uint8)

    def take(self, size: int) -> np.ndarray:
        """`size` bytes, 64-byte aligned."""
        size_in_lines = -(-size // 64) * 64
        if size_in_lines > len(self._free):
            self._free = _huge_pages(max(size_in_lines, self._CHUNK))
        taken, self._free = self._free[:size], self._free[size_in_lines:]
        return taken


def _huge_pages(size: int) -> np.ndarray:
    whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE
    mapped = mmap.mmap(-1, whole + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, dtype=np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE
    return memory[start : start + whole]


@intrinsic(prefer_literal=True)
def stack(typing: Any, size: Any) -> Any:
    """The address of `size` (a constant) bytes on the stack, 64-byte aligned, that live as long as the caller."""
    num_bytes = size.literal_value

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(ir.IntType(8), num_bytes))
            memory.align = 64
        return builder.ptrtoint(memory, I64)

    return types.intp(size), codegen


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the cache line at `address`, to be read soon: into the L2 cache, as a step of attention would crowd the first."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        pointer = _pointer(builder, args[0], ir.IntType(8))
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
        builder.call(function, [pointer, i32(0), i32(2), i32(1)])
        return context.get_dummy_value()

    return types.void(types.intp), codegen
