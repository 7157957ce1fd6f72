"""One HTTP request and its answer: body in, a client that may leave, errors in the right place, one log line."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from backends.api.errors import Code, ServingError
from openai_api.errors import shutting_down, wire_error
from openai_api.http import (
    DROP_CONNECTION,
    ClientGoneError,
    Headers,
    header,
    is_safe_request_id,
    read_body,
    request_id,
    send_error,
    send_json,
    until_client_leaves,
)
from openai_api.options import OpenAIOptions
from openai_api.sse import WRITE_BODY, EventStream, Failure, error_event

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Exchange:
    """Owns the connection of one request until it is answered.

    The work that makes the answer runs as a task of its own, and is cancelled when the client leaves, stops reading
    or is told to go by `stop`; the work gives back what it holds in its own `finally`.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, options: OpenAIOptions) -> None:
        self.id = request_id(scope)
        self._has_callers_id = self.id == header(scope, b"x-request-id")
        self.scope = scope
        self.fields: dict[str, object] = {}  # what the log line says of the work, set by it
        self._receive = receive
        self._send = send
        self._options = options
        self._started = time.monotonic()
        extensions = scope.get("extensions", {})
        self._events = EventStream(send, time.monotonic, extensions.get(WRITE_BODY))
        self._drop_connection: Callable[[], None] | None = extensions.get(DROP_CONNECTION)
        self._has_answered = False
        self._work: asyncio.Task[object] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopped_by: ServingError | None = None
        self._is_stuck = False

    # For the work

    def take_id(self, wanted: str) -> None:
        """Go by the id in the body, where it is safe to echo and no header gave one."""
        if not self._has_callers_id and is_safe_request_id(wanted):
            self.id = wanted

    async def answer(self, body: bytes) -> None:
        """The whole answer, as JSON."""
        elapsed = round((time.monotonic() - self._started) * 1000)
        self._has_answered = True
        await send_json(self._send, 200, body, [*self._headers(), (b"openai-processing-ms", b"%d" % elapsed)])

    async def open_stream(self, failure: Failure = error_event) -> EventStream:
        """Commit to a streamed answer: from here on an error is an event, made by `failure`."""
        await self._events.start(self._headers(), failure)
        keep = self._events.keep(self._options.keep_alive_interval, self._options.send_timeout)
        self._keeper = asyncio.create_task(keep)
        self._keeper.add_done_callback(self._stop_reading)
        return self._events

    # For the server

    async def run(self, work: Callable[[bytes], Coroutine[object, object, None]]) -> None:
        """Answer the request with `work(body)`; whatever happens is answered, logged, or both."""
        try:
            limits = self._options
            reading = read_body(self.scope, self._receive, limits.max_body_bytes, limits.body_timeout)
            body = await self._stoppable(reading)
            if limits.log_request_chars:
                self._log_body(body, limits.log_request_chars)
            await self._race(work(body))
            ending = "ok"
        except ClientGoneError:
            ending = "not_read" if self._is_stuck else "left"
        except ServingError as error:
            ending = error.reason or wire_error(error).code or str(error.code.value)
            await self._report(error)
        except Exception:
            ending = "bug"
            logger.exception("request=%s unexpected error", self.id)
            internal = ServingError(Code.INTERNAL, f"an internal error occurred (request id {self.id})")
            await self._report(internal, [(b"x-should-retry", b"false")])
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
            if self._is_stuck and self._drop_connection is not None:
                self._drop_connection()
        took = time.monotonic() - self._started
        fields = {"request": self.id, "path": self.scope["path"], **self.fields, "took_s": took, "end": ending}
        logger.info("answered", extra={"fields": fields})

    def stop(self, error: ServingError) -> None:
        """End the request with `error`, if it is not answered yet."""
        self._stopped_by = error
        if self._work is not None:
            self._work.cancel()

    async def _stoppable(self, work: Coroutine[object, object, T]) -> T:
        """What `work` returns, unless `stop` comes first."""
        task = self._work = asyncio.create_task(work)
        try:
            return await task
        except asyncio.CancelledError:
            raise self._stopped_by or shutting_down() from None
        finally:
            task.cancel()

    async def _race(self, work: Coroutine[object, object, None]) -> None:
        """Run `work` until it ends or the client leaves. Raises what it raised, or why it was ended."""
        task = self._work = asyncio.create_task(work)
        gone = asyncio.create_task(until_client_leaves(self._receive))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                raise ClientGoneError
        finally:
            gone.cancel()
            task.cancel()
        if not task.cancelled():
            task.result()
        elif self._is_stuck:
            raise ClientGoneError
        else:
            raise self._stopped_by or shutting_down()

    async def _report(self, error: ServingError, headers: Headers | None = None) -> None:
        """Tell the client: an answer of its own while nothing is sent yet, else an event."""
        if self._events.ended or self._has_answered:
            return
        tell: Callable[[], Awaitable[None]]
        if self._events.started:
            tell = partial(self._events.fail, error)
        else:
            tell = partial(send_error, self._send, error, [*self._headers(), *(headers or [])])
        try:
            async with asyncio.timeout(self._options.send_timeout):
                await tell()
        except TimeoutError:
            self._is_stuck = True

    def _log_body(self, body: bytes, limit: int) -> None:
        text = body[: 4 * limit].decode("utf-8", "replace")[:limit]  # a character has at most four bytes
        logger.info("request=%s path=%s bytes=%d body=%s", self.id, self.scope["path"], len(body), json.dumps(text))

    def _headers(self) -> Headers:
        return [(b"x-request-id", self.id.encode())]

    def _stop_reading(self, keeper: "asyncio.Task[None]") -> None:
        """The stream's keeper has ended by itself: the client does not read."""
        if not keeper.cancelled() and self._work is not None:
            self._is_stuck = True
            self._work.cancel()


class InFlight:
    """The exchanges under way, and whether new ones are welcome."""

    def __init__(self) -> None:
        self._exchanges: set[Exchange] = set()
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._exchanges)

    @contextmanager
    def exchange(self, exchange: Exchange) -> Iterator[Exchange]:
        """Count `exchange` as under way inside the block. Raises ServingError once the server drains."""
        if self._is_draining:
            raise shutting_down()
        self._exchanges.add(exchange)
        self._idle.clear()
        try:
            yield exchange
        finally:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self._idle.set()

    async def drain(self, grace: float) -> None:
        """Take nothing more, wait `grace` seconds for what is under way, then end the rest with an error each.

        Returns when every exchange has been told.
        """
        self._is_draining = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for exchange in list(self._exchanges):
                exchange.stop(shutting_down())
            await self._idle.wait()
