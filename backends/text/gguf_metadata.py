"""The key-value head of a GGUF file, read without its tensors (format: github.com/ggml-org/ggml docs/gguf.md)."""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from backends.api.errors import Code, ServingError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# value type -> little-endian numpy dtype of its scalar
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_MAX_DEPTH = 4


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Every key of the file's head; arrays come as lists.

    Raises ServingError(INVALID) for what is no GGUF file, is cut off, or has a version or type not known here.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data, path)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise _invalid(path, f"its head is cut off or damaged ({error})") from error
    except (OSError, ValueError) as error:
        raise _invalid(path, str(error)) from error


def _read(data: mmap.mmap, path: Path) -> dict[str, Any]:
    if data[:4] != _MAGIC:
        raise _invalid(path, f"it starts with {data[:4]!r}, expected {_MAGIC!r}")
    version, _, num_keys = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise _invalid(path, f"its version is {version}, known are {_VERSIONS} in little-endian order")
    cursor = _Cursor(data, 24)
    return {cursor.string(): cursor.value(cursor.u32()) for _ in range(num_keys)}


class _Cursor:
    """Reads onward from `offset`. Running past the end raises struct.error or IndexError."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self._offset = offset
        self._length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from

    def u32(self) -> int:
        (value,) = struct.unpack_from("<I", self._data, self._offset)
        self._offset += 4
        return int(value)

    def u64(self) -> int:
        (value,) = self._length_at(self._data, self._offset)
        self._offset += 8
        return value

    def string(self) -> str:
        start = self._offset + 8
        (length,) = self._length_at(self._data, self._offset)
        end = start + length
        if end > len(self._data):
            raise IndexError(f"a string of {length} bytes at {start} passes the end")
        self._offset = end
        return self._data[start:end].decode()

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        return self._scalars(kind, 1)[0]

    def _array(self, depth: int) -> list[Any]:
        if depth > _MAX_DEPTH:
            raise IndexError("arrays are nested too deeply")
        kind, length = self.u32(), self.u64()
        if length > len(self._data):
            raise IndexError(f"an array of {length} values passes the end")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind, depth) for _ in range(length)]
        return self._scalars(kind, length)

    def _scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            raise IndexError(f"value type {kind} is not known")
        dtype = np.dtype(_SCALARS[kind])
        end = self._offset + count * dtype.itemsize
        if end > len(self._data):
            raise IndexError(f"{count} values at {self._offset} pass the end")
        values: list[Any] = np.frombuffer(self._data[self._offset : end], dtype).tolist()
        self._offset = end
        return values


def _invalid(path: Path, what: str) -> ServingError:
    return ServingError(Code.INVALID, f"GGUF file '{path}': {what}")
