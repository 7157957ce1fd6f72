"""The one place that decides which device, which number format and whose kernels run a model."""

import logging
import os

import torch

from backends.api.errors import Code, ServingError
from backends.lm.ops import Ops
from backends.lm.options import LmOptions
from backends.lm.torch_ops import TorchOps

log = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(options: LmOptions) -> torch.device:
    """Raises ServingError(UNSUPPORTED) for CUDA where there is none."""
    has_cuda = torch.cuda.is_available()
    if options.device == "cuda" and not has_cuda:
        raise ServingError(
            Code.UNSUPPORTED,
            "parameter 'device': expected cpu or auto, got cuda: torch finds no CUDA device here",
            param="device",
        )
    return torch.device("cuda" if has_cuda and options.device != "cpu" else "cpu")


def choose_dtype(options: LmOptions, device: torch.device) -> torch.dtype:
    """Of TorchOps' activations and weights: bfloat16 where the device computes in it, else float32."""
    if options.dtype != "auto":
        return _DTYPES[options.dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def choose_ops(options: LmOptions, device: torch.device) -> Ops:
    return TorchOps(choose_dtype(options, device), device, deterministic=options.deterministic)


def set_threads(options: LmOptions) -> int:
    """Sets torch's threads for this process, one core left for the front where there are more than two."""
    cores = len(os.sched_getaffinity(0))
    threads = options.num_threads or (cores if cores <= 2 else cores - 1)
    torch.set_num_threads(threads)
    return threads
