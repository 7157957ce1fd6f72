"""ResponseStream: one writer, one reader, exactly one end."""

import asyncio
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.stream import ResponseStream, finish_all
from backends.api.wakes import JoinedWakes

ERROR = ServingError(Code.INTERNAL, "broke")


async def drain(stream: ResponseStream[int]) -> tuple[list[int], str]:
    """What a reader gets, and how it ended."""
    items = []
    try:
        async for item in stream:
            items.append(item)  # noqa: PERF401 - what came before an error counts
    except ServingError as error:
        return items, error.code.value
    return items, "finished"


async def test_items_put_before_the_end_are_read_and_later_ones_dropped() -> None:
    stream: ResponseStream[int] = ResponseStream()
    stream.put(1)
    stream.finish(2)
    stream.put(3)
    assert await drain(stream) == ([1, 2], "finished")


async def test_an_error_comes_after_the_items_before_it() -> None:
    stream: ResponseStream[int] = ResponseStream()
    stream.put(1)
    stream.fail(ERROR)
    assert await drain(stream) == ([1], "internal")


async def test_cancel_drops_what_is_unread_and_tells_the_writer_once() -> None:
    stream: ResponseStream[int] = ResponseStream()
    calls: list[str] = []
    stream.on_cancel(lambda: calls.append("early"))
    stream.put(1)
    stream.cancel()
    stream.cancel()
    stream.on_cancel(lambda: calls.append("late"))
    assert calls == ["early", "late"]
    assert stream.cancelled
    assert await drain(stream) == ([], "cancelled")


async def test_a_cancel_after_the_end_is_nothing() -> None:
    stream: ResponseStream[int] = ResponseStream()
    calls: list[str] = []
    stream.on_cancel(lambda: calls.append("cancel"))
    stream.finish(7)
    stream.cancel()
    assert calls == []
    assert await drain(stream) == ([7], "finished")


@given(st.lists(st.sampled_from(["put", "finish", "fail", "cancel"]), max_size=8))
def test_every_order_of_acts_ends_a_stream_once(acts: list[str]) -> None:
    stream: ResponseStream[int] = ResponseStream()
    expected: list[int] = []
    end = ""
    for number, act in enumerate(acts):
        {
            "put": lambda number=number: stream.put(number),
            "finish": stream.finish,
            "fail": lambda: stream.fail(ERROR),
            "cancel": stream.cancel,
        }[act]()
        if end:
            continue
        if act == "put":
            expected.append(number)
        else:
            end = {"finish": "finished", "fail": "internal", "cancel": "cancelled"}[act]
            expected = [] if act == "cancel" else expected
    assert stream.ended == bool(end)
    if not end:
        stream.finish()
    assert asyncio.run(drain(stream)) == (expected, end or "finished")


async def test_a_writer_on_another_thread_wakes_the_reader() -> None:
    stream: ResponseStream[int] = ResponseStream()

    def write() -> None:
        for number in range(1000):
            stream.put(number)
        stream.finish()

    thread = threading.Thread(target=write)
    reading = asyncio.ensure_future(drain(stream))
    await asyncio.sleep(0)
    thread.start()
    assert await reading == (list(range(1000)), "finished")
    thread.join()


async def test_take_brings_all_that_is_there_and_nothing_at_the_end() -> None:
    stream: ResponseStream[int] = ResponseStream()
    for number in range(3):
        stream.put(number)
    assert await stream.take() == [0, 1, 2]
    stream.finish()
    assert await stream.take() == []


async def test_a_batch_from_another_thread_wakes_every_reader_with_its_own_answer() -> None:
    streams: list[ResponseStream[int]] = [ResponseStream() for _ in range(20)]
    asynchronous, plain, gone = streams[:10], streams[10:18], streams[18:]
    reading = [asyncio.ensure_future(drain(stream)) for stream in asynchronous]
    blocked = [asyncio.ensure_future(asyncio.to_thread(stream.get)) for stream in plain]
    for stream in gone:
        stream.cancel()
    await asyncio.sleep(0)
    thread = threading.Thread(target=finish_all, args=([(stream, n) for n, stream in enumerate(streams)],))
    thread.start()
    assert await asyncio.gather(*reading) == [([number], "finished") for number in range(10)]
    assert await asyncio.gather(*blocked) == list(range(10, 18))
    assert all(stream.cancelled and stream.num_waiting == 0 for stream in gone)
    thread.join()


async def test_a_batch_finished_on_the_readers_own_loop_wakes_it() -> None:
    stream: ResponseStream[int] = ResponseStream()
    reading = asyncio.ensure_future(drain(stream))
    await asyncio.sleep(0)
    finish_all([(stream, 5)])
    assert await reading == ([5], "finished")


def test_a_plain_thread_reads_with_get() -> None:
    stream: ResponseStream[int] = ResponseStream()
    thread = threading.Thread(target=lambda: (stream.put(1), stream.finish()))
    thread.start()
    assert stream.get(timeout=10) == 1
    assert stream.get(timeout=10) is None
    thread.join()


def test_get_raises_the_error_of_a_bad_end_and_gives_up_in_time() -> None:
    stream: ResponseStream[int] = ResponseStream()
    with pytest.raises(TimeoutError):
        stream.get(timeout=0)
    stream.fail(ERROR)
    with pytest.raises(ServingError, match="broke"):
        stream.get()


def test_a_reader_whose_loop_has_closed_does_not_harm_the_writer() -> None:
    stream: ResponseStream[int] = ResponseStream()

    async def start_to_read() -> None:
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(start_to_read())
    thread = threading.Thread(target=lambda: stream.put(1))
    thread.start()
    thread.join()
    assert stream.num_waiting == 1


async def test_a_reader_that_is_called_back_on_its_loop_is_so_from_any_thread() -> None:
    streams: list[ResponseStream[int]] = [ResponseStream() for _ in range(3)]
    called = asyncio.Event()
    seen: list[tuple[int, int]] = []

    def note(stream: ResponseStream[int]) -> None:
        seen.append((stream.poll()[0], threading.get_ident()))
        if len(seen) == len(streams):
            called.set()

    streams[0].finish(0)
    for stream in streams:
        stream.notify_on_loop(partial(note, stream))
    await asyncio.to_thread(finish_all, [(stream, number) for number, stream in enumerate(streams) if number])
    await asyncio.wait_for(called.wait(), 20)
    assert sorted(seen) == [(number, threading.get_ident()) for number in range(3)]


async def test_wakes_that_are_joined_reach_every_reader() -> None:
    streams = [ResponseStream[int]() for _ in range(3)]
    readers = asyncio.gather(*(drain(stream) for stream in streams))
    await asyncio.sleep(0)  # all of them wait now

    def write() -> None:
        with JoinedWakes():
            streams[0].put(1)
            streams[0].finish(2)
            streams[1].fail(ERROR)
            finish_all([(streams[2], 3)])

    await asyncio.to_thread(write)
    assert await readers == [([1, 2], "finished"), ([], "internal"), ([3], "finished")]


async def test_joined_wakes_of_readers_on_the_same_loop_come_at_the_end_of_the_outermost() -> None:
    streams, seen = [ResponseStream[int]() for _ in range(3)], list[int]()
    for stream in streams:
        stream.notify_on_loop(lambda: seen.append(sum(each.ended for each in streams)))
    with JoinedWakes():
        streams[0].finish(0)
        with JoinedWakes():
            streams[1].finish(1)
        streams[2].finish(2)
        assert not seen
    assert seen == [3, 3, 3]
