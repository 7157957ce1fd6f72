"""An accepted request: its choices run by the engine, their deltas written to a stream or folded into an answer."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from backends.api.errors import ServingError
from openai_api.choice import Choice, Delta
from openai_api.model import TextModel
from openai_api.pump import Pump
from openai_api.sse import EventStream
from openai_api.usage import Usage


class Writer(Protocol):
    """How an answer is told in events: its opening, its deltas, and then its ending or its failure."""

    def opening(self, choices: Sequence[Choice]) -> bytes: ...

    def delta(self, choice: Choice, delta: Delta) -> bytes: ...

    def ending(self) -> bytes: ...

    def failure(self, error: ServingError) -> bytes: ...


class Generation:
    """Owns the engine's requests from `submit` to `close`, which cancels those still running.

    `firsts` are the choices that stand for their prompts, one a prompt: a prompt's tokens are counted once.
    """

    def __init__(self, choices: Sequence[Choice], firsts: Sequence[Choice]) -> None:
        self.choices = choices
        self.usage = Usage(prompt=sum(len(choice.request.prompt) for choice in firsts))
        self._uncounted = {choice.index for choice in firsts}
        self._num_open = len(choices)

    def submit(self, model: TextModel) -> None:
        """Give every choice to the engine, or none: raises ServingError as soon as one is refused."""
        requests = [choice.request for choice in self.choices]
        model.check_together(requests)
        try:
            for request in requests:
                model.generate(request)
        except ServingError:
            self.close()
            raise

    def close(self) -> None:
        for choice in self.choices:
            choice.request.stream.cancel("the client left")

    def as_fields(self) -> dict[str, object]:
        """For a log line. Times in seconds since the request arrived, of its first choice; 0.0 where it did not get there."""
        request = self.choices[0].request
        reached = {"queue_s": request.times.scheduled, "first_token_s": request.times.first_token}
        times = {name: max(time - request.arrived, 0.0) for name, time in reached.items()}
        return {**self.usage.as_fields(), **times}

    async def collect(self) -> list[tuple[Choice, list[Delta]]]:
        """Each choice with the whole of its stream. Raises ServingError when one fails."""
        collected = []
        for choice in self.choices:
            deltas = await choice.rest()
            for delta in deltas:
                self._count(choice, delta)
            collected.append((choice, deltas))
        return collected

    async def stream(self, events: EventStream, writer: Writer) -> None:
        """Write every delta as it comes, each choice at its own pace, then the end."""
        opening = writer.opening(self.choices)
        if opening:
            await events.write(opening)
        if len(self.choices) == 1:
            last = await self._pump(self.choices[0], events, writer)
        else:
            last = await self._pump_all(events, writer)
        await events.done(last + writer.ending())

    async def _pump_all(self, events: EventStream, writer: Writer) -> bytes:
        try:
            async with asyncio.TaskGroup() as group:
                pumps = [group.create_task(self._pump(choice, events, writer)) for choice in self.choices]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return b"".join(pump.result() for pump in pumps)

    async def _pump(self, choice: Choice, events: EventStream, writer: Writer) -> bytes:
        """Write one choice's events. Those of the last choice's end are returned: they leave with the end of the stream."""
        last = await Pump(choice, events, partial(self._written, writer, choice)).run()
        self._num_open -= 1
        if self._num_open == 0:
            return last
        await events.write(last)
        return b""

    def _written(self, writer: Writer, choice: Choice, deltas: Sequence[Delta]) -> bytes:
        written = []
        for delta in deltas:
            self._count(choice, delta)
            written.append(writer.delta(choice, delta))
        return written[0] if len(written) == 1 else b"".join(written)

    def _count(self, choice: Choice, delta: Delta) -> None:
        self.usage.completion += delta.num_generated
        self.usage.reasoning += delta.num_reasoning
        if choice.index in self._uncounted:
            self._uncounted.discard(choice.index)
            self.usage.cached += choice.num_cached
