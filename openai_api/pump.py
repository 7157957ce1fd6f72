"""From a choice's tokens to the client, without a task's turn for each of them."""

import asyncio
from collections.abc import Callable, Sequence

from backends.api.wakes import LoopWake
from openai_api.choice import Choice, Delta
from openai_api.sse import EventStream

Render = Callable[[Sequence[Delta]], bytes]
"""Deltas as whole events; b"" where they say nothing."""


class Pump:
    """Writes one choice's events as its tokens come: where they are delivered while the client reads, else in `run`."""

    def __init__(self, choice: Choice, events: EventStream, render: Render) -> None:
        self._choice = choice
        self._events = events
        self._render = render
        self._loop = asyncio.get_running_loop()
        self._wake = LoopWake(self._on_news)
        self._unwritten: asyncio.Future[bytes]

    async def run(self) -> bytes:
        """Write all but the last events, those of the choice's end, which are returned. Raises what ends it otherwise."""
        while True:
            self._unwritten = self._loop.create_future()
            self._listen()
            events = await self._unwritten
            if self._choice.finished:
                return events
            await self._events.write(events)

    def _listen(self) -> None:
        stream = self._choice.request.stream
        if stream.num_waiting or stream.ended:
            self._loop.call_soon(self._on_news)
        else:
            stream.notify(self._wake)

    def _on_news(self) -> None:
        """Never raises: it is called where the tokens of all streams are delivered."""
        if self._unwritten.done():  # `run` was cancelled
            return
        try:
            events = self._render(self._choice.poll())
            is_over = self._choice.finished or not (not events or self._events.write_now(events))
        except Exception as error:
            self._unwritten.set_exception(error)
            return
        if is_over:
            self._unwritten.set_result(events)
        else:
            self._listen()
