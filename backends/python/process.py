"""A custom model's process, seen from the server: started, talked to without ever blocking, and ended."""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from backends.python import arena
from backends.python.arena import Arena
from backends.python.frame_codec import MAX_HEADER, PREFIX, FrameError, decode, encode
from backends.python.frames import Free
from backends.python.packing import Packer, Unpacker

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = Path(np.__file__).resolve().parents[1]
# Appended, so that nothing of ours stands before what the model's environment has. An environment of the same Python
# may borrow our packages (numpy, msgspec), another one could not load them.
_START = (
    "import sys; root, packages, version = sys.argv[1:4]; del sys.argv[1:4]; "
    "sys.path = [path for path in sys.path if path] + [root]; "
    "sys.path += [packages] if version == sys.version else []; "
    "from backends.python.child import main; main()"
)
_CHUNK = 1 << 18
_LINE = 1 << 16
_GRACE = 2.0  # seconds between the end of the socket and SIGKILL

log = logging.getLogger("tidegate.model")


class ProcessEndedError(Exception):
    """The process is gone, or says what is no frame: `ModelProcess.reap` it."""


class ModelProcess:
    """Used on one thread at a time."""

    def __init__(self, model: str, python: str = "", environment: Mapping[str, str] | None = None) -> None:
        """Starts it. Raises OSError."""
        self._model = model
        self._wake = -1
        ours, theirs = socket.socketpair()
        down, up = arena.create(), arena.create()
        try:
            arguments = [
                str(_ROOT),
                str(_PACKAGES),
                sys.version,
                str(theirs.fileno()),
                str(down),
                str(up),
                str(os.getpid()),
            ]
            self._process = subprocess.Popen(
                [python or sys.executable, "-c", _START, *arguments],
                pass_fds=(theirs.fileno(), down, up),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a Ctrl-C is for the server, which drains first
            )
        except BaseException:
            ours.close()
            os.close(down)
            os.close(up)
            raise
        finally:
            theirs.close()
        assert self._process.stdout is not None
        self._out: Arena = Arena(down)
        self._in: Arena = Arena(up)
        self._socket = ours
        self._socket.setblocking(False)
        self._printed = self._process.stdout
        os.set_blocking(self._printed.fileno(), False)
        self._line = b""
        self._unsent: deque[memoryview] = deque()
        self._buffer = bytearray()
        self._poll = select.poll()
        for fd in (ours.fileno(), self._printed.fileno()):
            self._poll.register(fd, select.POLLIN)

    def watch(self, wake: int) -> None:
        """Let a `poll` end when the eventfd `wake` can be read, and reset it."""
        self._wake = wake
        self._poll.register(wake, select.POLLIN)

    @property
    def socket(self) -> int:
        """The descriptor to `receive` from, and to `flush` to while there is something `unsent`."""
        return self._socket.fileno()

    @property
    def printed(self) -> int:
        """The descriptor of what the model prints, for `log_lines`."""
        return self._printed.fileno()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_held(self) -> int:
        """Blocks of shared memory that the process has not given back."""
        return self._out.num_held

    def packer(self) -> Packer:
        return Packer(self._out)

    def send(self, frame: tuple[Any, ...], packer: Packer | None = None) -> None:
        """What the socket does not take now is sent during `poll`."""
        released = self._in.released
        if released:
            self._push(encode(Free([released.popleft() for _ in range(len(released))])))
        if packer is None:
            self._push(encode(frame))
        elif packer.size < _CHUNK:
            self._push(b"".join([encode(frame, packer.size), *packer.buffers]))
        else:
            self._push(encode(frame, packer.size))
            for buffer in packer.buffers:
                self._push(buffer)

    def poll(self, timeout: float) -> list[tuple[Any, Unpacker]]:
        """Wait up to `timeout` seconds (inf: no limit) for anything, and return the frames that came.

        Raises ProcessEndedError.
        """
        mask = select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN
        self._poll.modify(self._socket, mask)
        frames: list[tuple[Any, Unpacker]] = []
        for fd, event in self._poll.poll(None if timeout > 1e6 else max(0.0, timeout) * 1000):
            if fd == self._socket.fileno():
                if event & select.POLLOUT:
                    self.flush()
                if event & ~select.POLLOUT:
                    frames = self.receive()
            elif fd == self._wake:
                os.eventfd_read(fd)
            elif not self.log_lines():
                self._poll.unregister(fd)
        return frames

    def receive(self) -> list[tuple[Any, Unpacker]]:
        """The frames that have come, without waiting. Raises ProcessEndedError."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise ProcessEndedError
        self._buffer += data
        try:
            return self._take_frames()
        except FrameError as error:
            raise ProcessEndedError(str(error)) from None

    def flush(self) -> None:
        """Send what can be sent now of what is unsent."""
        try:
            while self._unsent:
                rest = self._unsent[0][self._socket.send(self._unsent[0]) :]
                if rest:
                    self._unsent[0] = rest
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()

    def log_lines(self) -> bool:
        """What the model has printed becomes lines of our log. False after the last of it."""
        try:
            data = os.read(self._printed.fileno(), _LINE)
        except (BlockingIOError, ValueError):
            return True
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            log.info("%s: %s", self._model, line.decode(errors="replace"))
        if len(self._line) > _LINE:
            log.info("%s: %s", self._model, self._line.decode(errors="replace"))
            self._line = b""
        return bool(data)

    def reap(self, error: ProcessEndedError) -> str:
        """`end` what raised `error`; how it ended, in words."""
        return f"sent garbage ({error}) and was {self.end(0.0)}" if error.args else self.end()

    def end(self, grace: float = _GRACE) -> str:
        """See to it that it is gone; how it ended, in words."""
        self._socket.close()
        try:
            code = self._process.wait(grace) if grace else self._killed()
        except subprocess.TimeoutExpired:
            code = self._killed()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started must not outlive it
        self.log_lines()
        if self._line:
            log.info("%s: %s", self._model, self._line.decode(errors="replace"))
        self._printed.close()
        return f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    def _killed(self) -> int:
        self._process.kill()
        return self._process.wait()

    def _push(self, data: Any) -> None:
        view = memoryview(data)
        if not self._unsent:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # gone: `poll` will say so
        if view:
            self._unsent.append(view)

    def _take_frames(self) -> list[tuple[Any, Unpacker]]:
        frames = []
        data, position = bytes(self._buffer), 0
        view = memoryview(data)
        while len(data) - position >= PREFIX.size:
            kind, header_size, payload_size = PREFIX.unpack_from(data, position)
            if header_size > MAX_HEADER:
                raise FrameError(f"a header of {header_size} bytes")
            start = position + PREFIX.size
            middle, end = start + header_size, start + header_size + payload_size
            if end > len(data):
                break
            frame = decode(kind, view[start:middle])
            if isinstance(frame, Free):
                for offset in frame.offsets:
                    self._out.free(offset)
            else:
                frames.append((frame, Unpacker(view[middle:end], self._in)))
            position = end
        del self._buffer[:position]
        return frames
