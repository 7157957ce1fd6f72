"""uvicorn's HTTP protocol, on joined writes, with a way around the application for requests that need no waiting.

An ASGI application costs a task for each request, a dictionary for each thing it is told or tells, and three turns of
the event loop: together more than a small model's whole request.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from backends.api.errors import Code, ServingError
from gateway.http_body import App, Header, Message, Receive, Scope, Send
from gateway.http_parser import Parser
from gateway.joined_writes import JoinedWrites, TurnEnd
from openai_api.errors import error_body
from openai_api.http import DROP_CONNECTION
from openai_api.sse import WRITE_BODY

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 256
_HEAD_SECONDS = 60.0  # for a connection to bring the head of a request once it is open or has begun one
_REFUSAL = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"


class Exchange:
    """A whole request, and the one answer to it. Used on the event loop."""

    __slots__ = ("_cycle", "_transport", "body", "call", "scope")

    def __init__(self, cycle: RequestResponseCycle, transport: JoinedWrites) -> None:
        self.scope: Scope = cycle.scope  # type: ignore[assignment]
        self.body = bytes(cycle.body)
        self.call: Call | None = None  # told when the client leaves before the answer
        self._cycle = cycle
        self._transport = transport

    def answer(self, status: int, body: bytes, content_type: bytes, more: Iterable[Header] = ()) -> None:
        """Nothing when the client has gone."""
        cycle = self._cycle
        self.call, self.body, cycle.body = None, b"", bytearray()
        if cycle.disconnected:
            return
        lines = [STATUS_LINE[status], b"content-type: ", content_type, b"\r\ncontent-length: %d\r\n" % len(body)]
        for name, value in more:
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        cycle.response_started = cycle.response_complete = True
        self._transport.write_whole(b"".join([*lines, b"\r\n", body]))
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()


class BodyWriter:
    """A `WriteBody` for the answer to one request, once its head is sent: past every layer between it and the socket."""

    __slots__ = ("_cycle", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: JoinedWrites) -> None:
        self._cycle = cycle
        self._transport = transport

    def __call__(self, data: bytes) -> bool:
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


class Call(Protocol):
    def client_left(self) -> None: ...


class DirectCalls(Protocol):
    """Who answers requests without the application."""

    def takes(self, scope: Scope) -> bool:
        """Whether this may be one of theirs, by its head."""
        ...

    def start(self, exchange: Exchange) -> bool:
        """Take it on and answer it, now or later; False leaves it to the application. Must not raise."""
        ...


class HttpProtocol(HttpToolsProtocol):
    """A request for `direct` is held until its body is complete; if that takes more than one read, the application gets it."""

    def __init__(self, *args: Any, turn_end: TurnEnd, direct: DirectCalls | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self._turn_end = turn_end
        self._direct = direct
        self._held: tuple[RequestResponseCycle, Any] | None = None
        self._exchange: Exchange | None = None
        self.parser: Parser = Parser(self)  # type: ignore[assignment]
        self._awaits_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._num_head_bytes = 0  # no fewer than have come of the head, whose reads may hold more than it
        self._is_head_too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop, self._turn_end))  # type: ignore[arg-type]
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaits_head = False
        self._time_head()
        super().connection_lost(exc)
        if self._exchange is not None and self._exchange.call is not None:
            self._exchange.call.client_left()

    def data_received(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._awaits_head and self._num_head_bytes > MAX_HEAD_BYTES and not self._is_head_too_large:
            self._is_head_too_large = True
            self.send_400_response("")
        if self._held is not None:
            self._release()
        if self._awaits_head or self._head_timer is not None:
            self._time_head()

    def on_message_begin(self) -> None:
        self._awaits_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits_head = False
        if self._num_head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._check_head()
        if not self.parser.ignores_upgrade:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.parser.ignores_upgrade:
            return
        super().on_message_complete()
        self._num_head_bytes = 0
        if self._held is None or self._direct is None:
            return
        self._exchange = Exchange(self._held[0], self.transport)  # type: ignore[arg-type]
        if self._direct.start(self._exchange):
            self._held = None
        else:
            self._release()

    def send_400_response(self, msg: str) -> None:
        """The end of a connection whose next request cannot be read: `msg` says why, unless its head is too large."""
        status = 431 if self._is_head_too_large else 400
        if self._is_head_too_large:
            msg = f"the head of a request may have {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes"
        body = error_body(ServingError(Code.INVALID, msg))
        self.transport.write(_REFUSAL % (STATUS_LINE[status], len(body), body))
        self.transport.close()

    def _check_head(self) -> None:
        """Raises ValueError, which the parser takes for a request that cannot be read."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._is_head_too_large = True
            raise ValueError

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._direct is not None and self._may_hold(cycle) and self._direct.takes(cycle.scope):  # type: ignore[arg-type]
            self._held = cycle, app
        else:
            self._start_task(cycle, app)

    def _may_hold(self, cycle: RequestResponseCycle) -> bool:
        """Not a request that waited behind another one, whose head is long read, nor one that waits for a word from us."""
        return (
            cycle is self.cycle
            and cycle.more_body
            and not cycle.waiting_for_100_continue
            and not self.flow.write_paused
        )

    def _release(self) -> None:
        assert self._held is not None
        (cycle, app), self._held = self._held, None
        self._start_task(cycle, app)

    def _start_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["extensions"] = {
            WRITE_BODY: BodyWriter(cycle, self.transport),  # type: ignore[dict-item, arg-type]
            DROP_CONNECTION: partial(self._drop, cycle),  # type: ignore[dict-item]
        }
        if cycle.scope["http_version"] == "1.0":
            app = partial(_without_chunks, app, cycle)
        super()._start_asgi_task(cycle, app)

    def _drop(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        self.transport.abort()

    def _time_head(self) -> None:
        """Start the timer of a head that is under way, or stop the one whose head has come."""
        if self._head_timer is None and self._awaits_head:
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self.timeout_keep_alive_handler)
        elif self._head_timer is not None and not self._awaits_head:
            self._head_timer.cancel()
            self._head_timer = None


async def _without_chunks(app: App, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send) -> None:
    """`app` for a client of HTTP/1.0, who takes the end of the connection for that of an answer of unknown length."""
    ends_by_close = False

    async def send_plainly(message: Message) -> None:
        nonlocal ends_by_close
        if message["type"] == "http.response.start":
            ends_by_close = not any(name.lower() == b"content-length" for name, _ in message["headers"])
            if ends_by_close:
                cycle.chunked_encoding = False
        elif ends_by_close:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plainly)
