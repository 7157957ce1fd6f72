"""What an answer is written in leaves in one piece: its head and body as one packet, one system call.

uvicorn writes the head of an answer by itself: a second system call that wakes the client a second time. Measured at
16 clients on a busy machine, joined writes took 7 to 10 µs of about 100 off an answer (see bench/README.md).
"""

import asyncio
import logging
from typing import Any

log = logging.getLogger(__name__)
_ENOUGH = 64 * 1024  # bytes that are passed on at once, so that the transport can hold the writer back


class TurnEnd:
    """The transports of one event loop that have something to pass on when its turn ends: one after the other, since
    system calls in a row cost half of what they do between pieces of other work (measured at 1000 streams)."""

    def __init__(self) -> None:
        self._due: list[JoinedWrites] = []

    def add(self, writes: "JoinedWrites", loop: asyncio.AbstractEventLoop) -> None:
        if not self._due:
            loop.call_soon(self._flush_all)
        self._due.append(writes)

    def _flush_all(self) -> None:
        due, self._due = self._due, []
        for writes in due:
            try:
                writes.flush()
            except Exception:  # the others must not wait for ever
                log.exception("a connection could not be written to")


class JoinedWrites:
    """A transport that passes on together what is written in one turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, turn_end: TurnEnd) -> None:
        self._transport = transport
        self._loop = loop
        self._turn_end = turn_end
        self._held: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            self._turn_end.add(self, self._loop)
        self._held.append(data)
        self._size += len(data)
        if self._size >= _ENOUGH:
            self.flush()

    def write_whole(self, data: bytes) -> None:
        """`data` is all there is to write for now: it leaves at once, after what is held."""
        self.flush()
        self._pass_on(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self._pass_on(held[0] if len(held) == 1 else b"".join(held))

    def _pass_on(self, data: bytes) -> None:
        if not self._transport.is_closing():  # else the client has left since this was written
            self._transport.write(data)
