"""A choice's events on their way to a client that reads, reads slowly, or leaves."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from backends.text.stream import TextOptions, TextStream
from openai_api.choice import Choice, Delta
from openai_api.pump import Pump
from openai_api.sse import EventStream
from tests.unit.openai_api.scripted import TOKENIZER, tokens_of


class Client:
    """What it got at once and what it was waited for, in order. `reads` False: nothing can be written at once."""

    def __init__(self) -> None:
        self.reads = True
        self.got: list[tuple[str, bytes]] = []

    def write_body(self, data: bytes) -> bool:
        if self.reads:
            self.got.append(("at once", data))
        return self.reads

    async def send(self, message: dict) -> None:
        await asyncio.sleep(0)
        self.got.append(("waited", message["body"]))


def choice_of(request: GenerateRequest) -> Choice:
    return Choice(0, request, TextStream(TOKENIZER, TextOptions()))


def render(deltas: Sequence[Delta]) -> bytes:
    return "".join(delta.text for delta in deltas).encode()


@pytest.fixture
def request_() -> GenerateRequest:
    return GenerateRequest(id="r", prompt=[1], sampling=SamplingParams(max_tokens=100))


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
async def pumped(request_: GenerateRequest, client: Client) -> "asyncio.Task[bytes]":
    events = EventStream(client.send, lambda: 0.0, client.write_body)  # type: ignore[arg-type]
    task = asyncio.create_task(Pump(choice_of(request_), events, render).run())
    await asyncio.sleep(0)
    return task


def token(text: str, finish: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(tokens_of(text), finish=finish)


async def test_what_a_reading_client_is_told_has_left_when_the_token_is_delivered(pumped, request_, client) -> None:
    request_.stream.put(token("a"))
    assert client.got == [("at once", b"a")]
    request_.stream.put(token("b"))
    assert client.got == [("at once", b"a"), ("at once", b"b")]
    request_.stream.finish(token("c", FinishReason.LENGTH))
    assert await pumped == b"c"


async def test_a_client_that_does_not_read_is_waited_for_and_gets_everything_in_order(pumped, request_, client) -> None:
    client.reads = False
    for text in "abc":
        request_.stream.put(token(text))
    while len(client.got) < 2:
        await asyncio.sleep(0)
    client.reads = True
    request_.stream.put(token("d"))
    request_.stream.finish(token("e", FinishReason.LENGTH))
    assert b"".join([*(data for _, data in client.got), await pumped]) == b"abcde"
    assert ("waited", b"a") in client.got


async def test_a_character_in_pieces_is_told_once_it_is_whole(pumped, request_, client) -> None:
    first, *rest = tokens_of("é")
    request_.stream.put(TokenEvent([first]))
    assert client.got == []
    request_.stream.put(TokenEvent(rest))
    assert client.got == [("at once", "é".encode())]
    pumped.cancel()


@pytest.mark.parametrize(
    "end", [lambda stream: stream.fail(ServingError(Code.INTERNAL, "broke")), lambda stream: stream.finish()]
)
async def test_an_engine_that_fails_or_ends_too_early_ends_it(
    pumped, request_, client, end: Callable[[object], None]
) -> None:
    request_.stream.put(token("a"))
    end(request_.stream)
    with pytest.raises(ServingError, match=r"broke|without a finish reason"):
        await pumped
    assert client.got == [("at once", b"a")]


async def test_a_fault_in_what_is_told_of_one_stream_does_not_reach_who_delivers(request_, client) -> None:
    def broken(deltas: Sequence[Delta]) -> bytes:
        raise ValueError("a bug")

    events = EventStream(client.send, lambda: 0.0, client.write_body)
    task = asyncio.create_task(Pump(choice_of(request_), events, broken).run())
    await asyncio.sleep(0)
    request_.stream.put(token("a"))
    with pytest.raises(ValueError, match="a bug"):
        await task


async def test_after_a_cancel_nothing_is_written(pumped, request_, client) -> None:
    pumped.cancel()
    await asyncio.wait({pumped})
    request_.stream.put(token("a"))
    request_.stream.cancel()
    assert client.got == []


async def test_tokens_from_another_thread_all_arrive(pumped, request_, client) -> None:
    def produce() -> None:
        for _ in range(500):
            request_.stream.put(token("x"))
        request_.stream.finish(token("y", FinishReason.LENGTH))

    thread = threading.Thread(target=produce)
    thread.start()
    last = await pumped
    thread.join()
    assert b"".join([*(data for _, data in client.got), last]) == b"x" * 500 + b"y"
