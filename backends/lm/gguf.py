"""A reader of GGUF files (versions 2 and 3, little-endian): metadata, and tensors mapped from the file.

Layout (ggml's docs/gguf.md): magic, version, counts, key-value pairs, tensor descriptions, then the tensors'
bytes from the next multiple of `general.alignment`. Numpy only, so that the API process can read a tokenizer.
"""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct, error

import numpy as np

from backends.api.errors import Code, ServingError
from backends.lm.dequantize import FORMATS

MetadataValue = bool | int | float | str | list[str] | np.ndarray

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: Struct("<I"),
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<?"),
    10: Struct("<Q"),
    11: Struct("<q"),
    12: Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_TYPE_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is rows first (the file has it last); `data` the flat uint8 bytes, fewer than due if the file is cut off.

    For a format that we do not read the size is unknown, and `data` is empty.
    """

    format: str
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: dict[str, MetadataValue]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Open `path`, and the other parts of a split file beside it; tensors are mapped, not read.

    Raises ServingError: NOT_FOUND without the file, INVALID when it is not GGUF, cut off or damaged.
    """
    first = _read_part(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    tensors = dict(first.tensors)
    for part in _other_parts(path, count):
        tensors |= _read_part(part).tensors
    return GgufFile(path, first.metadata, tensors)


def _other_parts(path: Path, count: int) -> list[Path]:
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[2]) != count:
        raise ServingError(
            Code.INVALID, f"{path}: expected the first part of {count}, named ...-00001-of-{count:05d}.gguf"
        )
    return [path.with_name(f"{match[1]}-{part:05d}-of-{count:05d}.gguf") for part in range(2, count + 1)]


def _read_part(path: Path) -> GgufFile:
    try:
        # copy-on-write, since torch has no read-only tensors; nobody writes, so pages stay the file's
        data = np.memmap(path, np.uint8, mode="c")
    except FileNotFoundError:
        raise ServingError(Code.NOT_FOUND, f"{path}: no such file") from None
    except (OSError, ValueError) as cause:
        raise ServingError(Code.INVALID, f"{path}: not a readable GGUF file: {cause}") from None
    cursor = _Cursor(data, path)
    try:
        return _parse(cursor)
    except (error, IndexError, ValueError, OverflowError) as cause:
        raise ServingError(
            Code.INVALID, f"{path}: the file is cut off or damaged near byte {cursor.at} of {len(data)}: {cause}"
        ) from None


class _Cursor:
    """A place in the file, moved by reading. Raises struct.error or ValueError past the end."""

    def __init__(self, data: np.ndarray, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self._bytes = data.data

    def scalar(self, kind: Struct) -> int | float | bool:
        value = kind.unpack_from(self._bytes, self.at)[0]
        self.at += kind.size
        return value

    def unsigned(self, kind: Struct) -> int:
        return int(self.scalar(kind))

    def string(self) -> str:
        size = self.unsigned(_U64)
        end = self.at + size
        if end > len(self._bytes):
            raise ValueError(f"a string of {size} bytes")
        text = str(self._bytes[self.at : end], "utf-8")
        self.at = end
        return text

    def value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.unsigned(_U32), self.unsigned(_U64)
            return [self.string() for _ in range(count)] if item == _STRING else self._array(item, count)
        return self.scalar(_scalar(kind))

    def _array(self, item: int, count: int) -> np.ndarray:
        dtype = np.dtype(_scalar(item).format)
        values = np.frombuffer(self._bytes, dtype, count, self.at)
        self.at += values.nbytes
        return values


def _scalar(kind: int) -> Struct:
    if kind not in _SCALARS:
        raise ValueError(f"metadata of type {kind}")
    return _SCALARS[kind]


def _parse(cursor: _Cursor) -> GgufFile:
    if bytes(cursor.data[:4]) != b"GGUF":
        raise ServingError(
            Code.INVALID, f"{cursor.path}: expected a GGUF file, got one that begins with {bytes(cursor.data[:4])!r}"
        )
    cursor.at = 4
    version = cursor.unsigned(_U32)
    if version not in (2, 3):
        raise ServingError(Code.UNSUPPORTED, f"{cursor.path}: expected GGUF version 2 or 3, got {version}")
    num_tensors, num_pairs = cursor.unsigned(_U64), cursor.unsigned(_U64)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.unsigned(_U32))
    described = [_describe(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"alignment {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {
        name: GgufTensor(kind, shape, _bytes_of(cursor.data, start + offset, kind, shape))
        for name, kind, shape, offset in described
    }
    return GgufFile(cursor.path, metadata, tensors)


def _describe(cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int]:
    name = cursor.string()
    num_dims = cursor.unsigned(_U32)
    if num_dims > 4:
        raise ValueError(f"tensor '{name}' of {num_dims} dimensions")
    shape = tuple(cursor.unsigned(_U64) for _ in range(num_dims))[::-1]
    kind = cursor.unsigned(_U32)
    return name, _TYPE_NAMES.get(kind, f"number {kind}"), shape, cursor.unsigned(_U64)


def _bytes_of(data: np.ndarray, start: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    size = FORMATS[kind].row_bytes(prod(shape)) if kind in FORMATS else 0
    return np.asarray(data[start : start + size])
