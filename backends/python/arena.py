"""Memory that the server and one custom model's process share, for tensors too large for a socket.

There are two, one for each direction; who writes an arena allocates in it. It is an anonymous file that lives as
long as somebody has it open: whichever side dies, and however, nothing is left behind.
"""

import mmap
import os
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

_SIZES = (1 << 36, 1 << 32, 1 << 29)  # address space only: pages come when they are written
_PAGE = 4096
_WARM = 1 << 26  # bytes at the start that are kept when they are free, for the next tensor


def create() -> int:
    """The descriptor of a new arena, which the caller owns."""
    fd = os.memfd_create("tidegate", os.MFD_CLOEXEC)
    for size in _SIZES:
        try:
            os.ftruncate(fd, size)
            mmap.mmap(fd, size).close()
        except (OSError, ValueError):  # a limit on files or address space: try with less
            continue
        return fd
    os.close(fd)
    raise OSError("no address space for shared memory")


class Arena:
    """Both sides' view. `allocate` and `free` are for the writer, on one thread or under its lock."""

    def __init__(self, fd: int) -> None:
        """Maps `fd` and closes it."""
        try:
            size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.released: deque[int] = deque()  # offsets this side, a reader, is done with; any thread appends
        self._all = np.frombuffer(self._map, np.uint8)
        self._address = self._all.ctypes.data
        self._gaps: list[tuple[int, int]] = [(0, size)]  # (offset, size), by offset, never adjacent
        self._held: dict[int, int] = {}

    @property
    def num_held(self) -> int:
        return len(self._held)

    def allocate(self, size: int) -> int | None:
        """The offset of `size` bytes, the lowest there is; None when the arena is full."""
        size = -(-size // _PAGE) * _PAGE
        for index, (offset, room) in enumerate(self._gaps):
            if room >= size:
                if room == size:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (offset + size, room - size)
                self._held[offset] = size
                return offset
        return None

    def free(self, offset: int) -> None:
        size = self._held.pop(offset, 0)
        if not size:
            return
        cold = max(offset, _WARM)
        if offset + size > cold:
            self._map.madvise(mmap.MADV_REMOVE, cold, offset + size - cold)
        insort(self._gaps, (offset, size))
        index = self._gaps.index((offset, size))
        if index + 1 < len(self._gaps) and offset + size == self._gaps[index + 1][0]:
            size += self._gaps.pop(index + 1)[1]
            self._gaps[index] = (offset, size)
        if index and sum(self._gaps[index - 1]) == offset:
            before, room = self._gaps[index - 1]
            self._gaps[index - 1 : index + 1] = [(before, room + size)]

    def write(self, offset: int, data: "memoryview | bytes") -> None:
        self._map[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        """A copy; the block is released at once."""
        self._check(offset, size)
        data = self._map[offset : offset + size]
        self.released.append(offset)
        return data

    def array(self, offset: int, size: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        """A view, which releases its block when the last array over it is gone."""
        self._check(offset, size)
        block = _Block(self, self._address + offset, dtype, shape, lambda: self.released.append(offset))
        return np.asarray(block)

    def _check(self, offset: int, size: int) -> None:
        if not 0 <= offset <= offset + size <= len(self._map):
            raise ValueError(f"{size} bytes at {offset} lie outside of the shared memory")


class _Block:
    """The owner of one array's memory, as numpy's array interface asks for it."""

    def __init__(
        self, arena: Arena, address: int, dtype: Any, shape: tuple[int, ...], release: Callable[[], object]
    ) -> None:
        self._arena = arena
        self._release = release
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "typestr": np.dtype(dtype).str,
            "shape": shape,
        }

    def __del__(self) -> None:
        self._release()
