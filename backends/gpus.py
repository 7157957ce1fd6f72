"""How many CUDA GPUs this process sees, asked of the driver so that no framework has to be imported."""

import ctypes
from functools import cache


@cache
def num_cuda_gpus() -> int:
    """0 without a driver. CUDA_VISIBLE_DEVICES is respected by the driver itself."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
