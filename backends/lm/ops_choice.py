"""The one place that decides which number format and whose kernels run a model."""

import logging
import os
from collections.abc import Sequence

import torch

from backends.api.errors import Code, ServingError
from backends.lm.attention.varlen import check_varlen
from backends.lm.cpu import cpu_ops
from backends.lm.cpu.features import cpu_features
from backends.lm.device import DTYPES
from backends.lm.ops import AttentionSpec, Ops
from backends.lm.options import LmOptions
from backends.lm.torch_ops import TorchOps

log = logging.getLogger(__name__)


def choose_dtype(options: LmOptions, device: torch.device) -> torch.dtype:
    """Of TorchOps' activations and weights: bfloat16 where the device computes in it, else float32."""
    if options.dtype != "auto":
        return DTYPES[options.dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def choose_ops(options: LmOptions, device: torch.device, specs: Sequence[AttentionSpec], threads: int) -> Ops:
    """CPU kernels where the processor and the model's shapes suit them, else torch.

    Raises ServingError(UNSUPPORTED) for an attention backend that was asked for by name and cannot be had.
    """
    if device.type == "cpu" and options.attention_backend in ("auto", "numba"):
        try:
            return _cpu_ops(options, specs, threads)
        except ServingError as refused:
            if refused.code is not Code.UNSUPPORTED or options.attention_backend == "numba":
                raise
            log.info("no CPU kernels: %s", refused.message)
    dtype = choose_dtype(options, device)
    attention = _torch_attention(options, device, dtype, specs)
    return TorchOps(dtype, device, attention=attention, deterministic=options.deterministic)


def _cpu_ops(options: LmOptions, specs: Sequence[AttentionSpec], threads: int) -> Ops:
    """`dtype` auto leaves 4- and 8-bit weights as they are; a dtype given by name is computed in.

    CPU kernels are deterministic as they are.
    """
    dtype = ("bfloat16" if cpu_features().bf16 else "float32") if options.dtype == "auto" else options.dtype
    ops = cpu_ops(dtype, threads, quantized=options.dtype == "auto")
    try:
        for spec in set(specs):
            ops.attention(spec, 1, options.block_size)
    except ServingError:
        ops.close()
        raise
    return ops


def _torch_attention(
    options: LmOptions, device: torch.device, dtype: torch.dtype, specs: Sequence[AttentionSpec]
) -> str:
    asked = options.attention_backend
    if asked == "gather" or (asked == "reference" and device.type == "cpu"):
        return asked
    if asked in ("numba", "reference"):
        raise ServingError(
            Code.UNSUPPORTED,
            f"parameter 'attention_backend': expected auto, varlen or gather on {device.type}, got {asked}",
            param="attention_backend",
        )
    try:
        for spec in set(specs):
            check_varlen(spec, options.block_size, dtype, device)
    except ServingError as refused:
        if refused.code is not Code.UNSUPPORTED or asked == "varlen":
            raise
        return "gather"
    return "varlen"


def set_threads(options: LmOptions) -> int:
    """Sets torch's threads for this process, one core left for the front where there are more than two."""
    cores = len(os.sched_getaffinity(0))
    threads = options.num_threads or (cores if cores <= 2 else cores - 1)
    torch.set_num_threads(threads)
    return threads
