"""Many answers on one HTTP connection: server-sent events or a JSON document a line."""

import asyncio
import json
import re
from collections.abc import Callable

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from gateway.errors import as_serving_error, http_status
from gateway.http_body import Receive, Send, error_body, error_headers
from gateway.kserve_service import is_mark

EVENT_STREAM = b"text/event-stream; charset=utf-8"
NDJSON = b"application/x-ndjson"
_PATIENCE = 0.01  # seconds before the watch for a lost client starts: a quick answer does not pay for it
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")

Encode = Callable[[InferenceResponse], bytes]
"""An answer as JSON. Raises ServingError for contents that JSON cannot carry."""


class LostClientWatch:
    """Cancels a request when its client closes the connection. Use as a context around the wait for answers."""

    def __init__(self, receive: Receive, request: InferenceRequest) -> None:
        self._receive = receive
        self._request = request
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._start)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        # however the wait ended, nobody reads this stream any more; nothing if it has ended by itself
        self._request.stream.cancel("the client has gone")

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._request.stream.cancel("the client has gone")


async def send_answers(
    send: Send, request: InferenceRequest, encode: Encode, content_type: bytes
) -> ServingError | None:
    """Send every answer as it comes; returns the error that ended them, if one did.

    The first answer decides the status: an error there has its own, a later one is the last event of a 200.
    """
    frame = _event if content_type == EVENT_STREAM else _line
    started = False
    while True:
        frames, error = await _next_frames(request, encode, frame)
        if not frames:
            break
        if not started:
            await _start(send, 200, content_type)
            started = True
        await send({"type": "http.response.body", "body": b"".join(frames), "more_body": True})
        if error is not None:
            break
    if not started:
        await _start(send, 200 if error is None else http_status(error.code), content_type, error)
    last = b"" if error is None else frame(error_body(error))
    await send({"type": "http.response.body", "body": last, "more_body": False})
    return error


async def _next_frames(
    request: InferenceRequest, encode: Encode, frame: Callable[[bytes], bytes]
) -> tuple[list[bytes], ServingError | None]:
    """What has come by now, and the error after it; nothing at a good end."""
    frames: list[bytes] = []
    try:
        while not frames:
            responses = await request.stream.take()
            if not responses:
                break
            for response in responses:
                if not is_mark(response):
                    frames.append(frame(encode(response)))  # noqa: PERF401 - those before one that fails are kept
    except Exception as error:
        return frames, as_serving_error(error)
    return frames, None


async def _start(send: Send, status: int, content_type: bytes, error: ServingError | None = None) -> None:
    # proxies that buffer would hold answers back until the end
    headers = [(b"content-type", content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    if error is not None:
        headers += error_headers(error)
    await send({"type": "http.response.start", "status": status, "headers": headers})


def _event(document: bytes) -> bytes:
    return b"data: %b\n\n" % _ascii(document)


def _line(document: bytes) -> bytes:
    return _ascii(document) + b"\n"


def _ascii(document: bytes) -> bytes:
    """JSON in ASCII alone: some readers take U+2028, U+0085 and the like for the end of a line."""
    if document.isascii():
        return document
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], document.decode()).encode()


def decoupled_refusal() -> ServingError:
    return ServingError(Code.UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy")
