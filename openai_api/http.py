"""The ASGI plumbing of a JSON endpoint: headers in, a bounded body in, one answer out."""

import asyncio
import re
import uuid
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from backends.api.errors import Code, ServingError
from openai_api.errors import error_body, error_headers, wire_error

Headers = list[tuple[bytes, bytes]]

DROP_CONNECTION = "tidegate.drop_connection"
"""An ASGI extension: a function that ends the connection at once, for an answer that nobody reads."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientGoneError(Exception):
    """The peer closed the connection: there is nobody to answer."""


def header(scope: Scope, name: bytes) -> str:
    """The value of a request header, "" when absent; names come in lower case from the server."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


def request_id(scope: Scope) -> str:
    """The caller's X-Request-Id where it is safe to echo and log, else a new one."""
    given = header(scope, b"x-request-id")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def is_safe_request_id(given: str) -> bool:
    return _REQUEST_ID.fullmatch(given) is not None


async def read_body(scope: Scope, receive: Receive, max_bytes: int, max_seconds: float) -> bytes:
    """As `bounded_body`, within `max_seconds`: raises ServingError(DEADLINE) after that."""
    try:
        async with asyncio.timeout(max_seconds):
            return await bounded_body(receive, header(scope, b"content-length"), max_bytes)
    except TimeoutError:
        raise ServingError(Code.DEADLINE, f"the request body did not arrive within {max_seconds:g} s") from None


async def bounded_body(receive: Receive, declared: str, max_bytes: int) -> bytes:
    """The request body, whose Content-Length is `declared` where there is one.

    One over the limit is refused before it is held: by its declared length at once, else when the bytes that have come
    pass the limit. The server then lets go of what else the client sends. Raises ServingError(TOO_LARGE), and
    ClientGoneError.
    """
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large(int(declared), max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise too_large(size, max_bytes)
        if not message.get("more_body", False):
            return part if not parts else b"".join([*parts, part])
        parts.append(part)


def too_large(size: int, limit: int) -> ServingError:
    return ServingError(
        Code.TOO_LARGE,
        f"request body of at least {size} bytes exceeds the maximum allowed {limit} bytes. "
        "Use --http-max-input-size to increase the limit.",
    )


async def until_client_leaves(receive: Receive) -> None:
    """Return once the peer has closed the connection (or the answer is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    head = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ServingError, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    await send_json(send, wire_error(error).status, error_body(error), [*error_headers(error), *headers])
