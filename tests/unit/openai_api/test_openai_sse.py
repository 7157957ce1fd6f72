import asyncio

import pytest

from backends.api.errors import Code, ServingError
from openai_api.sse import EventStream, event, next_check


class Sent(list):
    """An ASGI `send` that keeps the messages and, while `blocked` is not set, waits like a client that does not read."""

    def __init__(self):
        self.blocked = asyncio.Event()
        self.blocked.set()
        self.grew = asyncio.Event()

    async def __call__(self, message):
        await self.blocked.wait()
        self.append(message)
        self.grew.set()

    async def until(self, count):
        while len(self) < count:
            self.grew.clear()
            await self.grew.wait()

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self)


async def test_done_leaves_with_the_last_event_and_closes_the_body():
    sent = Sent()
    stream = EventStream(sent, clock=lambda: 0.0)
    await stream.start([(b"x-request-id", b"7")])
    await stream.write(event(b"{}"))
    await stream.done(event(b"1"))
    assert (b"content-type", b"text/event-stream; charset=utf-8") in sent[0]["headers"]
    assert (b"x-request-id", b"7") in sent[0]["headers"]
    assert [message["more_body"] for message in sent[1:]] == [True, False]
    assert sent[-1]["body"] == b"data: 1\n\ndata: [DONE]\n\n"


async def test_a_failure_is_an_event_without_done():
    sent = Sent()
    stream = EventStream(sent, clock=lambda: 0.0)
    await stream.start([])
    await stream.fail(ServingError(Code.UNAVAILABLE, "line one\nline two", reason="shutting_down"))
    assert sent.body.startswith(b'data: {"error":{"message":"line one\\nline two"')
    assert sent.body.endswith(b"\n\n")
    assert b"[DONE]" not in sent.body
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    ("silence", "is_sending", "interval", "expected"),
    [
        (2.0, False, 10.0, (8.0, False)),
        (10.0, False, 10.0, (0.0, False)),
        (12.0, False, 10.0, (0.0, False)),
        (5.0, False, 0.0, (60.0, False)),  # no heartbeats: look again for a stuck client
        (20.0, True, 10.0, (40.0, False)),  # never a heartbeat behind a write under way
        (60.0, True, 10.0, (0.0, True)),
    ],
)
def test_when_a_heartbeat_is_due_and_when_a_client_is_stuck(silence, is_sending, interval, expected):
    assert next_check(silence, is_sending, interval, send_timeout=60.0) == expected


async def test_silence_is_filled_with_comments():
    sent = Sent()
    stream = EventStream(sent, clock=asyncio.get_running_loop().time)
    keeper = asyncio.create_task(stream.keep(interval=0.001, send_timeout=60))
    await sent.until(3)
    keeper.cancel()
    assert sent.body.startswith(b": keep-alive\n\n: keep-alive\n\n")


async def test_a_client_that_stops_reading_ends_the_keeper():
    sent = Sent()
    sent.blocked.clear()
    stream = EventStream(sent, clock=asyncio.get_running_loop().time)
    write = asyncio.create_task(stream.write(event(b"{}")))
    await asyncio.wait_for(stream.keep(interval=10, send_timeout=0.001), 5)
    assert not write.done()
    write.cancel()


async def test_a_heartbeat_nobody_reads_ends_the_keeper():
    sent = Sent()
    sent.blocked.clear()
    stream = EventStream(sent, clock=asyncio.get_running_loop().time)
    await asyncio.wait_for(stream.keep(interval=0.001, send_timeout=0.001), 5)
    assert sent == []
