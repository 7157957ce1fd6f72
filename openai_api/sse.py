"""Server-sent events as OpenAI clients read them: `data: ` lines and comments, LF framing, and nothing else."""

import asyncio
from collections.abc import Callable

from starlette.types import Send

from backends.api.errors import ServingError
from openai_api.errors import error_body

Failure = Callable[[ServingError], bytes]
WriteBody = Callable[[bytes], bool]
"""Writes a piece of a body at once; False, and nothing done, where that has to go through `send`, which can wait."""
WRITE_BODY = "tidegate.write_body"
"""The ASGI extension of a server that has a `WriteBody`: in `scope["extensions"]`, for the answer to that request."""
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


def event(data: bytes) -> bytes:
    """One event. `data` is a line: JSON in ASCII."""
    return b"data: " + data + b"\n\n"


def error_event(error: ServingError) -> bytes:
    return event(error_body(error))


class EventStream:
    """One streamed answer, from its head to its last byte.

    Ends exactly once: with `done`, whose [DONE] tells the client that the answer is whole, or with `fail`, whose
    error event tells it that it is not. An end without either leaves the body open, and the server then breaks the
    connection: no failure looks like success. Several tasks may write; each write is whole events and goes out whole.
    """

    __slots__ = ("_clock", "_failure", "_send", "_sending", "_touched", "_write_body", "ended", "started")

    def __init__(self, send: Send, clock: Callable[[], float], write_body: WriteBody | None = None) -> None:
        self._send = send
        self._write_body = write_body
        self._clock = clock
        self._failure: Failure = error_event
        self._sending = 0  # writes that wait for the client to read
        self._touched = clock()  # when a write last ended, or the oldest of those under way began
        self.started = False
        self.ended = False

    async def start(self, headers: list[tuple[bytes, bytes]], failure: Failure = error_event) -> None:
        """Send the head. `failure` makes the event that tells of an error."""
        self.started = True
        self._failure = failure
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEAD + headers})

    async def write(self, events: bytes) -> None:
        """Send whole events. Waits while the client does not read."""
        await self._write(events, more=True)

    def write_now(self, events: bytes) -> bool:
        """The same without waiting; False, and nothing sent, where that is not possible."""
        if self._write_body is None or self._sending or not self._write_body(events):
            return False
        self._touched = self._clock()
        return True

    async def done(self, last: bytes = b"") -> None:
        """Send the `last` events and [DONE], and close the body in the same write."""
        self.ended = True
        await self._write(last + DONE, more=False)

    async def fail(self, error: ServingError) -> None:
        self.ended = True
        await self._write(self._failure(error), more=False)

    async def keep(self, interval: float, send_timeout: float) -> None:
        """Send a comment after `interval` seconds of silence (0: never), for as long as the stream lives.

        Returns when the client has not read for `send_timeout` seconds (seen at the latest after twice that time).
        """
        while True:
            wait, is_stuck = next_check(self._clock() - self._touched, self._sending > 0, interval, send_timeout)
            if is_stuck:
                return
            if wait > 0:
                await asyncio.sleep(wait)
            elif not await self._beat(send_timeout):
                return

    async def _beat(self, send_timeout: float) -> bool:
        try:
            async with asyncio.timeout(send_timeout):
                await self.write(KEEP_ALIVE)
        except TimeoutError:
            return False
        return True

    async def _write(self, body: bytes, more: bool) -> None:
        if not self._sending:
            self._touched = self._clock()
        self._sending += 1
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._sending -= 1
        self._touched = self._clock()


def next_check(silence: float, is_sending: bool, interval: float, send_timeout: float) -> tuple[float, bool]:
    """(seconds until the next look, 0 for a heartbeat now; whether the client counts as stuck)

    `silence` is the time since the oldest write under way began or, when there is none, since the last one ended.
    """
    if is_sending:
        return (send_timeout - silence, False) if silence < send_timeout else (0.0, True)
    if interval <= 0:
        return send_timeout, False
    return min(max(0.0, interval - silence), send_timeout), False
