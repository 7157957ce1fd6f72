"""Where compiled kernels are kept between starts."""

import hashlib
from functools import cache
from pathlib import Path

import llvmlite
import numba
from numba.core import config

_KERNEL_FOLDERS = ("backends/lm/cpu", "backends/lm/attention")


def use_kernel_cache(folder: Path | None) -> None:
    """Let Numba keep kernels in a subfolder of `folder` that belongs to exactly this version of their source.

    Numba looks at a function's own file only, not at the modules whose code it inlines; the subfolder's name covers
    all of them. Has an effect on kernels not yet loaded, so it must be called before any. None: Numba's own choice
    (NUMBA_CACHE_DIR, or beside the source), again in a subfolder where that is possible.
    """
    base = folder or (Path(config.CACHE_DIR) if config.CACHE_DIR else Path(__file__).parent / "__pycache__")
    if base.name == _version():
        return
    target = base / _version()
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # nowhere to write: Numba looks for a place of its own
    config.CACHE_DIR = str(target)


@cache
def _version() -> str:
    """A name for the source of all kernels and of their compiler."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    root = Path(__file__).parents[3]
    for name in _KERNEL_FOLDERS:
        for path in sorted((root / name).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"kernels-{digest.hexdigest()[:16]}"
