"""A client for streamed completions that spends as little CPU as it can, since it shares the machine with the server."""

import asyncio
import json
import ssl
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools
import orjson

from bench.chat_load import Call


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint: `base` such as http://127.0.0.1:8000/v1."""

    base: str
    api_key: str = ""

    @property
    def address(self) -> tuple[str, int, ssl.SSLContext | None]:
        parts = urlsplit(self.base)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        return parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80), secure

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        parts = urlsplit(self.base)
        head = f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
        if self.api_key:
            head += f"Authorization: Bearer {self.api_key}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body


class _Exchange(asyncio.Protocol):
    """One request on a connection of its own; `finished` has the whole body, unless `on_event` took it."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.finished: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the server closed the connection: {error or 'no end of body'}")

    # called by the parser

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        if status == 200:
            self._finish()
        else:
            self._fail(f"status {status}: {bytes(self.body[:200]).decode(errors='replace')}")

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(bytes(self.body))
        if self.transport is not None:
            self.transport.close()

    def _fail(self, reason: str) -> None:
        if not self.finished.done():
            self.finished.set_exception(ConnectionError(reason))
        if self.transport is not None:
            self.transport.close()


class _Stream(_Exchange):
    """Notes when each event with text arrives, and reads the usage; other events are looked at as bytes only."""

    def __init__(self, request: bytes, call: Call) -> None:
        super().__init__(request)
        self.call = call
        self.is_done = False

    def on_body(self, body: bytes) -> None:
        now = time.perf_counter()
        self.body += body
        *events, rest = bytes(self.body).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                self._on_event(event[5:].lstrip(), now)
        if events:
            self.body = bytearray(rest)

    def _on_event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            self._finish()
        elif has_text(data):
            self.call.events.append(now)
        if b'"usage":{' in data or b'"error":' in data or b'"usage": {' in data:
            self._on_totals(orjson.loads(data))

    def _on_totals(self, chunk: dict) -> None:
        if "error" in chunk:
            self._fail(f"error event: {chunk['error']}")
        usage = chunk.get("usage") or {}
        self.call.prompt_tokens = usage.get("prompt_tokens", 0)
        self.call.completion_tokens = usage.get("completion_tokens", 0)
        self.call.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def has_text(data: bytes) -> bool:
    """Whether a chunk carries text, told from its bytes: a `content` or `text` that is neither empty nor null."""
    for name in (b'"content":', b'"text":'):
        place = data.find(name)
        if place >= 0:
            value = data[place + len(name) : place + len(name) + 4].lstrip()
            return value.startswith(b'"') and not value.startswith(b'""')
    return False


async def stream(endpoint: Endpoint, path: str, body: dict, limit: float) -> Call:
    """Send a streamed request and wait for its end; a failure is in the call's `error`."""
    call = Call(sent=time.perf_counter())
    request = endpoint.request("POST", path, json.dumps(body).encode())
    try:
        await _exchange(endpoint, _Stream(request, call), limit)
    except (OSError, TimeoutError) as error:
        call.error = str(error) or f"no end within {limit:g} s"
    if not call.events and not call.error:
        call.error = "an answer without text"
    return call


async def fetch(endpoint: Endpoint, method: str, path: str, body: dict | None = None, limit: float = 60.0) -> dict:
    """A plain JSON request. Raises ConnectionError with what the server said."""
    data = b"" if body is None else json.dumps(body).encode()
    return dict(orjson.loads(await _exchange(endpoint, _Exchange(endpoint.request(method, path, data)), limit)))


async def _exchange(endpoint: Endpoint, protocol: _Exchange, limit: float) -> bytes:
    host, port, secure = endpoint.address
    async with asyncio.timeout(limit):
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, host, port, ssl=secure)
        try:
            return await protocol.finished
        finally:
            transport.close()
