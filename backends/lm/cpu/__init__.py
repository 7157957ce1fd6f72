"""The decoder's operations on x86 servers, with kernels that Numba and LLVM compile on the machine they run on.

    features   what the processor offers
    vectors    LLVM instructions on 16 lanes            memory    addresses, atomics
    tiles      matrix micro-kernels                     panels    activations as they read them
    packing    weights as they read them, and which kernel a weight gets
    team       the threads, and tapes of tasks they run
    linear, norms, rotary, gates                        tasks
    x86_ops    `Ops` made of these                      fused     a whole decoder as one tape

Everything is batch invariant: a token's result is the same bit for bit alone, batched, chunked or recomputed.
Run so far on AMD Zen 4 only (AVX-512 with VNNI and BF16). Importing a module of kernels compiles them (or takes
them from the cache), so ask `cpu_ops` first: it refuses processors without AVX-512.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from backends.api.errors import Code, ServingError
from backends.lm.cpu.cache import use_kernel_cache
from backends.lm.cpu.features import cpu_features

if TYPE_CHECKING:
    from backends.lm.cpu.x86_ops import CpuOps


def cpu_ops(dtype: str, num_threads: int, *, quantized: bool = True, cache_folder: Path | None = None) -> "CpuOps":
    """Operations for this processor, computing on `num_threads` threads, the caller's included.

    `dtype` "float32" is exact arithmetic in float32, keys and values too. "bfloat16" keeps 4- and 8-bit weights as they
    are (times int8 activations with a scale every 32) unless `quantized` is False, computes with other weights in
    bfloat16 and keeps keys and values in it; sums, norms and activations are float32 in both.
    Compiled kernels are kept in `cache_folder`, by default where Numba keeps its own.
    Raises ServingError(UNSUPPORTED), for callers to fall back to `TorchOps`, where the processor has no AVX-512 or
    `dtype` is another.
    """
    if not cpu_features().avx512:
        raise ServingError(Code.UNSUPPORTED, "CPU kernels need a processor with AVX-512 (F, BW, DQ, VL)")
    if dtype not in ("float32", "bfloat16"):
        raise ServingError(
            Code.UNSUPPORTED, f"CPU kernels compute in float32 or bfloat16, not in {dtype}", param="dtype"
        )
    use_kernel_cache(cache_folder)
    from backends.lm.cpu.x86_ops import CpuOps  # compiles

    return CpuOps(dtype, num_threads, quantized)
