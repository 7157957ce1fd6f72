"""What this processor can do, as far as our kernels ask."""

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """`avx512`: F, BW, DQ and VL, without which none of our kernels is offered.

    `vnni`: byte dot products (`vpdpbusd`), for quantised weights. `bf16`: bfloat16 dot products (`vdpbf16ps`);
    without them the same kernels are compiled with two float32 multiply-adds in their place.
    """

    avx512: bool
    vnni: bool
    bf16: bool


@cache
def cpu_features() -> CpuFeatures:
    """The features of the processor we run on."""
    flags = llvm.get_host_cpu_features()
    avx512 = all(flags.get(name, False) for name in _AVX512)
    return CpuFeatures(
        avx512=avx512,
        vnni=avx512 and flags.get("avx512vnni", False),
        bf16=avx512 and flags.get("avx512bf16", False),
    )
