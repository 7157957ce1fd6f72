"""Bodies as they come over ASGI."""

import asyncio

import pytest

from backends.api.errors import Code, ServingError
from gateway import http_body
from gateway.http_body import Message, read_body


async def test_a_body_that_stops_coming_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_body, "_PATIENCE", 0.01)
    parts: list[Message] = [{"type": "http.request", "body": b"half", "more_body": True}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()
        raise AssertionError("nothing more comes")

    with pytest.raises(ServingError, match=r"nothing of the request body came for 0\.01 s") as caught:
        await read_body(receive, {b"content-length": b"500"}, 1000)
    assert caught.value.code is Code.DEADLINE
