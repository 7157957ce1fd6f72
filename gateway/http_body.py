"""Request bodies and answers over ASGI: compression both ways, error bodies.

What comes out of decompression is bounded like a body.
"""

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

import orjson

from backends.api.errors import Code, ServingError
from gateway.errors import http_status
from openai_api.http import bounded_body, too_large

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
_GZIP_LEVEL = 1  # on loopback and in a data centre the processor is the scarcer good
_BY_PREFERENCE = (b"gzip", b"deflate", b"identity")
_PATIENCE = 60.0  # seconds in which nothing of a body comes
_SMALL = 4096  # compressed bytes that cannot hold the event loop up for long, whatever they expand to
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}  # zlib's numbers for either frame


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """The whole body, decompressed.

    Raises ServingError: TOO_LARGE, UNSUPPORTED coding, INVALID content, DEADLINE when the client stops sending.
    """
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b"") and encoding not in _WINDOW_BITS:
        raise ServingError(Code.UNSUPPORTED, "Unsupported compression type", reason="content_encoding")
    body = await bounded_body(
        partial(_receive_in_time, receive), headers.get(b"content-length", b"").decode("latin-1"), limit
    )
    if encoding not in _WINDOW_BITS:
        return body
    if len(body) <= _SMALL:
        return decompress(body, encoding, limit)
    return await asyncio.to_thread(decompress, body, encoding, limit)


async def _receive_in_time(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(_PATIENCE):
            return await receive()
    except TimeoutError:
        raise ServingError(Code.DEADLINE, f"nothing of the request body came for {_PATIENCE:g} s") from None


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """`body` out of gzip or deflate; never makes more than `limit` bytes."""
    try:
        machine = zlib.decompressobj(_WINDOW_BITS[encoding])
        plain = machine.decompress(body, limit + 1)
        if len(plain) <= limit and not machine.eof:
            raise ServingError(Code.INVALID, f"the {encoding.decode()} body ends too early")
    except zlib.error as error:
        raise ServingError(Code.INVALID, f"the body is not valid {encoding.decode()}: {error}") from None
    if len(plain) > limit:
        raise too_large(len(plain), limit)
    if machine.unused_data:
        raise ServingError(Code.INVALID, f"unexpected bytes after the {encoding.decode()} body")
    return plain


def best_encoding(accept: bytes) -> bytes:
    """The coding of an answer by the client's Accept-Encoding: gzip, deflate or b"" for none.

    The highest q wins; of equals gzip, then deflate, then identity, as Triton chooses.
    """
    weights = dict.fromkeys(_BY_PREFERENCE, 0.0)
    for part in accept.lower().split(b","):
        name, _, rest = part.partition(b";")
        if name.strip() in weights:
            weights[name.strip()] = _quality(rest)
    best = max(weights, key=weights.__getitem__)  # of equals the first
    return b"" if weights[best] <= 0 or best == b"identity" else best


def _quality(text: bytes) -> float:
    name, _, value = text.strip().partition(b"=")
    if name.strip() != b"q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compress(body: bytes, encoding: bytes) -> bytes:
    if encoding == b"gzip":
        return gzip.compress(body, _GZIP_LEVEL, mtime=0)
    return zlib.compress(body, _GZIP_LEVEL)


async def respond(send: Send, status: int, body: bytes, content_type: bytes, more: Iterable[Header] = ()) -> None:
    """A whole answer in one piece."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_error(send: Send, error: ServingError) -> None:
    await respond(send, http_status(error.code), error_body(error), JSON, error_headers(error))


def error_body(error: ServingError) -> bytes:
    return orjson.dumps({"error": error.message})


def error_headers(error: ServingError) -> list[Header]:
    headers: list[Header] = []
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
    if error.reason == "content_encoding":
        headers.append((b"accept-encoding", b"gzip, deflate"))
    return headers
