"""The ASGI plumbing of a JSON endpoint: headers in, a bounded body in, one answer out."""

import asyncio
import re
import uuid
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from backends.api.errors import Code, ServingError
from openai_api.errors import error_body, error_headers, wire_error

Headers = list[tuple[bytes, bytes]]

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
    """The request body. Raises ServingError TOO_LARGE (decided before reading where the length is declared) or
    DEADLINE after `max_seconds`, and ClientGoneError."""
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(max_seconds):
            return await _collect(receive, max_bytes)
    except TimeoutError:
        raise ServingError(Code.DEADLINE, f"the request body did not arrive within {max_seconds:g} s") from None


async def _collect(receive: Receive, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> ServingError:
    return ServingError(Code.TOO_LARGE, f"the request body is larger than this server's limit of {max_bytes} bytes")


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
