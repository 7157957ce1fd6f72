"""One engine process, seen from its parent: started, talked to, watched to its end."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from backends.api.errors import Code, ServingError
from scheduler.engine_spec import EngineSpec, child_environment
from scheduler.frames import Commands, EngineFrame, FrameBuffer, encode, engine_decoder

log = logging.getLogger(__name__)

_LEVELS = {name: getattr(logging, name) for name in ("INFO", "WARNING", "ERROR", "CRITICAL")}
_GRACE = 5.0  # seconds between being asked to end, or having closed its socket, and SIGKILL


class EngineChild(asyncio.Protocol):
    """Owns the process and the socket. `ended` completes with the reason once both are gone and all frames were read."""

    def __init__(self, on_frame: Callable[[EngineFrame], object]) -> None:
        self._on_frame = on_frame
        self._buffer = FrameBuffer()
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process
        self._disconnected = asyncio.Event()
        self.ended: asyncio.Task[str]

    @classmethod
    async def spawn(cls, spec: EngineSpec, on_frame: Callable[[EngineFrame], object]) -> "EngineChild":
        """Start a process; its frames go to `on_frame` on this loop."""
        child = cls(on_frame)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        process: asyncio.subprocess.Process | None = None
        try:
            with theirs:
                process = child._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "scheduler.engine_process"),
                    *(str(theirs.fileno()), str(os.getpid()), msgspec.json.encode(spec).decode()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    env=child_environment(spec, os.environ),
                )
            await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
        except BaseException:
            ours.close()
            if process is not None:  # cancelled just after it was started
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.communicate())
            raise
        child.ended = asyncio.create_task(child._watch(spec.model_name), name=f"engine child of {spec.model_name}")
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, commands: Commands) -> None:
        """Nothing if the child is gone: its end will be told."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(commands))

    def kill(self) -> None:
        # not `self._process.kill()`: that may reap the process before asyncio's watcher does, and lose its status
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Ask it to end, and see to it that it does."""
        self.send(Commands(close=True))
        try:
            await asyncio.wait_for(asyncio.shield(self.ended), _GRACE)
        except TimeoutError:
            self.kill()
            await self.ended

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast: uvloop's transports are not subclasses of asyncio's
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        for body in self._buffer.feed(data):
            self._on_frame(engine_decoder.decode(body))

    def connection_lost(self, error: Exception | None) -> None:
        self._disconnected.set()

    async def _watch(self, model_name: str) -> str:
        log_lines = asyncio.create_task(self._log_lines(model_name))
        await self._disconnected.wait()
        try:
            code = await asyncio.wait_for(self._process.wait(), _GRACE)
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        await log_lines
        return f"engine process ended ({f'signal {-code}' if code < 0 else f'exit status {code}'})"

    async def _log_lines(self, model_name: str) -> None:
        """What the child prints becomes lines of our log."""
        assert self._process.stdout is not None
        rest = b""
        while data := await self._process.stdout.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _log_line(model_name, line.decode(errors="replace"))
        if rest:
            _log_line(model_name, rest.decode(errors="replace"))


def _log_line(model_name: str, line: str) -> None:
    """At the level the child gave it; what is not a line of its log (a traceback, a library's print) is told as it is."""
    level, _, message = line.partition(" ")
    if level in _LEVELS:
        log.log(_LEVELS[level], "engine of '%s': %s", model_name, message)
    else:
        log.info("engine of '%s': %s", model_name, line)


def ended_error(reason: str) -> ServingError:
    return ServingError(Code.UNAVAILABLE, reason, reason="engine_ended")
