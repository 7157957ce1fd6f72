"""A name for what a model's keys and values depend on."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def fingerprint(files: Sequence[Path], *parts: str) -> str:
    """Equal for equal weights run alike, on any machine: each file's size and pieces all over it, and `parts`.

    Reads a quarter megabyte a file, not all of it: weights that were trained on differ nearly everywhere.
    """
    digest = blake2b("|".join(parts).encode(), digest_size=16)
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            for at in range(0, size, max(_SAMPLE_BYTES, size // _SAMPLES)):
                opened.seek(at)
                digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()
