"""Which device a model runs on, and the number formats that its options name."""

import torch

from backends.api.errors import Code, ServingError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wanted: str) -> torch.device:
    """`wanted` is cpu, cuda, or auto: CUDA where there is one. Raises ServingError(UNSUPPORTED) for CUDA where there is none."""
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise ServingError(
            Code.UNSUPPORTED,
            "parameter 'device': expected cpu or auto, got cuda: torch finds no CUDA device here",
            param="device",
        )
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")
