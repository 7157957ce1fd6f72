"""Tensors into and out of frames, on both sides of a custom model's socket."""

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backends.api.tensor import NUMPY_DTYPES
from backends.python.arena import Arena
from backends.python.frame_codec import FrameError
from backends.python.frames import TensorFrame

INLINE = 64 * 1024  # bytes; larger tensors go through shared memory
_LENGTH = struct.Struct("<I")


class Packer:
    """Collects one frame's tensors: small ones as `buffers`, to be sent behind the header, large ones in `arena`."""

    def __init__(self, arena: Arena) -> None:
        self.buffers: list[Any] = []
        self.size = 0
        self._arena = arena

    def pack(
        self, name: str, datatype: str, shape: Sequence[int], data: "np.ndarray | list[bytes] | bytes"
    ) -> TensorFrame:
        if isinstance(data, np.ndarray):
            raw: memoryview | bytes = data.tobytes() if data.nbytes <= INLINE else _bytes_of(data)
        else:
            raw = data if isinstance(data, bytes) else join_strings(data)
        size = len(raw)
        if size > INLINE:
            offset = self._arena.allocate(size)
            if offset is not None:
                self._arena.write(offset, raw)
                return TensorFrame(name, datatype, list(shape), size, offset)
        self.size += size
        self.buffers.append(raw)
        return TensorFrame(name, datatype, list(shape), size, -1)

    def add(self, other: "Packer") -> None:
        """What `other` has collected follows in the same frame."""
        self.buffers += other.buffers
        self.size += other.size


class Unpacker:
    """Takes the tensors of one frame, in the order they were packed."""

    def __init__(self, payload: memoryview, arena: Arena) -> None:
        self._payload = payload
        self._arena = arena
        self._position = 0

    def take(self, frame: TensorFrame) -> "np.ndarray | list[bytes]":
        """Its contents: an array of the frame's shape, or for BYTES a flat list. Raises FrameError."""
        name, datatype, shape, size, offset = frame
        try:
            if datatype != "BYTES" and offset < 0:
                array = np.frombuffer(self._payload[self._position : self._position + size], NUMPY_DTYPES[datatype])
                self._position += size
                return array if len(shape) == 1 and shape[0] == array.size else array.reshape(_counted(shape))
            count = prod(shape)
            if datatype == "BYTES":
                items = split_strings(self._raw(frame))
                if len(items) != count:
                    raise FrameError(f"tensor '{name}': {len(items)} strings for shape {shape}")
                return items
            dtype = NUMPY_DTYPES[datatype]
            if size != count * dtype.itemsize or any(each < 0 for each in shape):
                raise FrameError(f"tensor '{name}': {size} bytes for shape {shape}")
            return self._arena.array(offset, size, dtype, tuple(shape))
        except (KeyError, ValueError, struct.error) as error:
            raise FrameError(f"tensor '{name}': {error}") from error

    def _raw(self, frame: TensorFrame) -> "bytes | memoryview":
        if frame.offset >= 0:
            return self._arena.read(frame.offset, frame.size)
        raw = self._payload[self._position : self._position + frame.size]
        self._position += frame.size
        return raw


def _counted(shape: list[int]) -> list[int]:
    """`shape`, in which numpy must not take a -1 for whatever is left. Raises ValueError."""
    if shape and min(shape) < 0:
        raise ValueError(f"shape {shape}")
    return shape


def join_strings(items: Sequence[bytes]) -> bytes:
    """Each element behind its length, 4 bytes little-endian: the protocol's own form."""
    pack = _LENGTH.pack
    return b"".join([part for item in items for part in (pack(len(item)), item)])


def split_strings(raw: "bytes | memoryview") -> list[bytes]:
    """Raises struct.error or ValueError for what `join_strings` cannot have made."""
    items = []
    position, end = 0, len(raw)
    while position < end:
        (length,) = _LENGTH.unpack_from(raw, position)
        position += 4
        if position + length > end:
            raise ValueError(f"a string of {length} bytes is cut short")
        items.append(bytes(raw[position : position + length]))
        position += length
    return items


def _bytes_of(array: np.ndarray) -> memoryview:
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8).data
