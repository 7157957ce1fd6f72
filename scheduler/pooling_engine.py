"""The engine of a pooling model: texts of many requests in one batch a step. Speaks the frames of the token engine."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, TokenEvent
from backends.pooling.runner import PoolingRunner, Row
from scheduler.deadlines import Deadlines
from scheduler.engine_errors import MAX_FAILURES, EngineBrokenError, as_serving_error
from scheduler.engine_options import EngineOptions
from scheduler.frames import Commands, EngineLimits, EngineStats, Failure, NewRequest, StepFrame
from scheduler.pooling_plan import PoolingQueue, due_times, token_budget

log = logging.getLogger(__name__)

_SMOOTHING = 0.2
_PACE_TOKENS = 128


@dataclass(slots=True, eq=False)
class _Pooled:
    """A request under way. `vectors` has an entry a text, None until it is computed; `left` counts those."""

    number: int
    vectors: list[np.ndarray | None]
    left: int
    is_started: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    request: _Pooled
    index: int
    row: Row


class PoolingEngine:
    """Owns the texts that wait and drives a runner. Requests are named by numbers and come checked (`check_request`).

    Each request added ends in exactly one frame: with all its vectors, with a failure, or silently after `abort`.
    """

    def __init__(
        self,
        runner: PoolingRunner,
        options: EngineOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        seconds_per_token: float = 0.0,
    ) -> None:
        """`seconds_per_token` is what is known of the runner before its first step, see `measured_pace`."""
        self._runner = runner
        self._options = options
        self._clock = clock
        self._queue: PoolingQueue[_Text] = PoolingQueue()
        self._requests: dict[int, _Pooled] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._failures: list[tuple[int, Failure]] = []
        self._has_news = False  # requests left since the last frame told of them
        self._num_failures = 0  # failed steps in a row
        self._num_steps = self._num_tokens = 0
        self._seconds_per_token = seconds_per_token

    @property
    def limits(self) -> EngineLimits:
        runner = self._runner
        return EngineLimits(runner.max_model_len, 0, 0, runner.vocab_size, self._options.max_num_seqs)

    @property
    def has_work(self) -> bool:
        return bool(self._requests or self._failures or self._has_news)

    def apply(self, commands: Commands) -> bool:
        """Do what a client wants. True when the engine shall end."""
        for request in commands.add:
            self.add(request)
        for number in commands.abort:
            self.abort(number)
        return commands.close

    def add(self, request: NewRequest) -> None:
        pooling = request.pooling
        assert pooling is not None, "a request of text generation came to a pooling engine"
        count = len(pooling.lengths)
        pooled = self._requests[request.number] = _Pooled(request.number, [None] * count, count)
        start = 0
        times = due_times(request.arrived, pooling.lengths, self._seconds_per_token)
        for index, due in enumerate(times):
            end = start + pooling.lengths[index]
            row = Row(request.prompt[start:end], pooling.seconds[index])
            self._queue.add(_Text(pooled, index, row), priority=request.priority, due=due)
            start = end
        if request.deadline is not None:
            self._deadlines.add(request.deadline, request.number)

    def abort(self, number: int) -> None:
        """The request is gone before the next step; nothing if it has ended."""
        if number in self._requests:
            self._forget(number)
            self._has_news = True

    def step(self) -> StepFrame:
        """Compute one batch. Raises EngineBrokenError after several failed steps in a row."""
        start = self._clock()
        self._expire(start)
        batch = self._take()
        scheduled = [(request.number, start) for request in self._starting(batch)]
        events = self._run(batch)
        end = self._clock()
        num_tokens = sum(len(text.row.tokens) for text in batch)
        if num_tokens:
            self._observe(num_tokens, end - start)
        if self._num_failures >= MAX_FAILURES:
            raise EngineBrokenError(f"{self._num_failures} steps in a row failed")
        failures, self._failures = self._failures, []
        self._has_news = False
        return StepFrame(end, events, scheduled, failures, self._stats(end - start, num_tokens))

    def close(self) -> None:
        """Nothing to give back: the process ends."""

    def _take(self) -> list[_Text]:
        """The most urgent texts that are within the step's budget, one at least. Nobody is overtaken."""
        budget = token_budget(self._options.max_num_batched_tokens, self._seconds_per_token)
        batch: list[_Text] = []
        while len(self._queue):
            text = self._queue.first()
            if not text.request.is_gone:
                budget -= len(text.row.tokens)
                if batch and budget < 0:
                    break
                batch.append(text)
            self._queue.pop()
        return batch

    def _starting(self, batch: list[_Text]) -> list[_Pooled]:
        starting = []
        for text in batch:
            if not text.request.is_started:
                text.request.is_started = True
                starting.append(text.request)
        return starting

    def _run(self, batch: list[_Text]) -> list[tuple[int, TokenEvent]]:
        """The requests that are complete with this batch. One that fails takes those with a text in it along."""
        if not batch:
            return []
        try:
            vectors = self._runner.run([text.row for text in batch])
            if len(vectors) != len(batch):
                raise RuntimeError(f"the runner answered {len(vectors)} of {len(batch)} texts")
        except Exception as error:
            log.exception("a step of %d texts failed", len(batch))
            self._num_failures += 1
            for number in {text.request.number for text in batch}:
                self._fail(number, as_serving_error(error))
            return []
        self._num_failures = 0
        events = []
        for text, vector in zip(batch, vectors, strict=True):
            request = text.request
            request.vectors[text.index] = vector
            request.left -= 1
            if not request.left:
                values = np.stack([vector for vector in request.vectors if vector is not None])
                events.append((request.number, TokenEvent([], finish=FinishReason.STOP, vectors=values.tobytes())))
                self._forget(request.number)
        return events

    def _expire(self, now: float) -> None:
        for number in self._deadlines.pop_due(now):
            waited = "" if self._requests[number].is_started else " while it waited for its turn"
            self._fail(number, ServingError(Code.DEADLINE, f"the request's deadline passed{waited}"))

    def _fail(self, number: int, error: ServingError) -> None:
        self._failures.append((number, Failure.of(error)))
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._requests.pop(number).is_gone = True
        self._deadlines.discard(number)

    def _observe(self, num_tokens: int, seconds: float) -> None:
        self._num_steps += 1
        self._num_tokens += num_tokens
        measured, known = seconds / num_tokens, self._seconds_per_token
        self._seconds_per_token = measured if not known else known + _SMOOTHING * (measured - known)

    def _stats(self, seconds: float, num_tokens: int) -> EngineStats:
        num_running = sum(request.is_started for request in self._requests.values())
        return EngineStats(
            num_running=num_running,
            num_waiting=len(self._requests) - num_running,
            num_prompt_tokens_total=self._num_tokens,
            num_steps_total=self._num_steps,
            step_seconds=seconds,
            step_tokens=num_tokens,
            seconds_per_token=self._seconds_per_token,
        )


def measured_pace(runner: PoolingRunner, clock: Callable[[], float] = time.monotonic) -> float:
    """Seconds a token takes in a batch of some size: without it, the first large request would be done at one go."""
    length = min(_PACE_TOKENS, runner.max_model_len)
    rows = [Row([0] * length, length)] * (_PACE_TOKENS // length)
    runner.run(rows)  # the first of its size may make kernels
    start = clock()
    runner.run(rows)
    return (clock() - start) / (length * len(rows))
