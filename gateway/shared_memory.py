"""Shared memory regions that clients registered: system (POSIX) ones, and CUDA ones where that is possible.

Contents are copied out of and into the shared object with read and write calls rather than mapped: a client that
shortens or rewrites its object while a request runs gets an error or its own new bytes, and the server no SIGBUS.
"""

import base64
import binascii
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

from backends.api.errors import Code, ServingError

_FOLDER = Path("/dev/shm")  # where Linux keeps POSIX shared memory objects
_OWN_PREFIX = "triton_python_backend_shm_region_"  # of a server's own workers
_CUDA_HANDLE_BYTES = 64  # sizeof(cudaIpcMemHandle_t)


class Region:
    """`byte_size` bytes at `offset` of the object `key`. Stays usable after unregistering while a request holds it."""

    def __init__(self, name: str, key: str, offset: int, byte_size: int, descriptor: int) -> None:
        self.name = name
        self.key = key
        self.offset = offset
        self.byte_size = byte_size
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self, offset: int, byte_size: int) -> memoryview:
        contents = os.pread(self._descriptor, byte_size, self.offset + offset)
        if len(contents) != byte_size:
            raise ServingError(
                Code.INVALID, f"shared memory region '{self.name}' has become shorter than it was when registered"
            )
        return memoryview(contents)

    def write(self, offset: int, contents: bytes) -> None:
        # os.pwrite would lengthen an object that the client has shortened
        if os.fstat(self._descriptor).st_size < self.offset + offset + len(contents):
            raise ServingError(
                Code.INVALID, f"shared memory region '{self.name}' has become shorter than it was when registered"
            )
        os.pwrite(self._descriptor, contents, self.offset + offset)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a region that a request's input or output uses; always within it."""

    region: Region
    offset: int
    byte_size: int

    def read(self) -> memoryview:
        return self.region.read(self.offset, self.byte_size)

    def write(self, output: str, contents: bytes) -> None:
        """Raises ServingError when the window is too small."""
        if len(contents) > self.byte_size:
            raise ServingError(
                Code.INTERNAL,  # Triton's kind for this one
                f"shared memory size specified with the request for output '{output}' ({self.byte_size} bytes) "
                f"should be at least {len(contents)} bytes to hold the results",
            )
        self.region.write(self.offset, contents)


class SharedMemory:
    """The registered system regions, by name. Any thread may call; refuses everything unless `allowed`."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises ServingError: ALREADY_EXISTS for a taken name, INVALID for none, INTERNAL (as Triton) for an object that
        does not fit."""
        self.check_allowed()
        if not name:  # which stands for all regions elsewhere
            raise ServingError(Code.INVALID, "a shared memory region must have a name")
        with self._lock:
            if name in self._regions:
                raise ServingError(Code.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
            descriptor = _open(key)
            if byte_size == 0 or offset + byte_size > os.fstat(descriptor).st_size:
                os.close(descriptor)
                raise ServingError(Code.INTERNAL, f"Invalid shared memory region: '{key}'")
            self._regions[name] = Region(name, key, offset, byte_size, descriptor)

    def unregister(self, name: str | None = None) -> None:
        """Forget one region, or all. An unknown name is fine; a request that uses a region keeps it until it ends."""
        self.check_allowed()
        with self._lock:
            if name is None:
                self._regions.clear()
            else:
                self._regions.pop(name, None)

    def status(self, name: str | None = None) -> list[Region]:
        """One region, or all. Raises ServingError(NOT_FOUND)."""
        self.check_allowed()
        with self._lock:
            if name is None:
                return list(self._regions.values())
            if name not in self._regions:
                raise ServingError(Code.NOT_FOUND, f"Unable to find system shared memory region: '{name}'")
            return [self._regions[name]]

    def window(self, name: str, offset: int, byte_size: int) -> Window:
        """A part of a region. Raises ServingError: NOT_FOUND, or INVALID for a part that is not within it."""
        self.check_allowed()
        region = self._regions.get(name)
        if region is None:
            raise ServingError(Code.NOT_FOUND, f"Unable to find shared memory region: '{name}'")
        if not 0 <= offset < region.byte_size:
            raise ServingError(Code.INVALID, f"Invalid offset for shared memory region: '{name}'")
        if byte_size <= 0 or offset + byte_size > region.byte_size:
            raise ServingError(Code.INVALID, f"Invalid offset + byte size for shared memory region: '{name}'")
        return Window(region, offset, byte_size)

    def check_allowed(self) -> None:
        if not self._allowed:
            raise ServingError(
                Code.UNSUPPORTED,
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
            )


class CudaSharedMemory:
    """CUDA regions: handles are checked and then refused, since no tensor is read from device memory here."""

    def __init__(self, *, allowed: bool) -> None:
        self._gate = SharedMemory(allowed=allowed)

    def register(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        self._gate.check_allowed()
        if len(raw_handle) != _CUDA_HANDLE_BYTES:
            raise bad_cuda_handle()
        raise ServingError(
            Code.UNSUPPORTED,
            f"failed to register CUDA shared memory region '{name}' of {byte_size} bytes on device {device_id}: "
            "this server has no GPU to open it on",
        )

    def unregister(self, name: str | None = None) -> None:
        self._gate.unregister(name)

    def status(self, name: str | None = None) -> list[Region]:
        """None is ever registered. Raises ServingError(NOT_FOUND) for a name."""
        self._gate.check_allowed()
        if name is not None:
            raise ServingError(Code.NOT_FOUND, f"Unable to find cuda shared memory region: '{name}'")
        return []


def decode_cuda_handle(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad_cuda_handle() from None


def bad_cuda_handle() -> ServingError:
    return ServingError(Code.INVALID, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")


def _open(key: str) -> int:
    """A descriptor of the object `key`, which names a file of its own folder and nothing else."""
    name = key.removeprefix("/")
    if name.startswith(_OWN_PREFIX) or "/" in name or name in ("", ".", "..") or "\0" in name:
        raise ServingError(Code.INVALID, f"shared memory key '{key}' is not one that a client may register")
    try:
        return os.open(_FOLDER / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise ServingError(Code.INTERNAL, f"Unable to open shared memory region: '{key}'") from None
