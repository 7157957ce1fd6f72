"""KServe requests that are answered by a task each on the event loop: taken, answered, counted, ended once."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.statistics import Failure, ModelStatistics

log = logging.getLogger(__name__)

Answer = Callable[[InferenceRequest], Awaitable[tuple[InferenceResponse, int]]]
"""Gives the last answer, and for how many rows the model ran; answers before it are put on the stream.

Writes `compute_start` and `compute_input_end` of the request's times. Raises ServingError for a request it cannot
answer.
"""


class Answering:
    """Runs `answer` for every request. Each ends once, and is counted once in `statistics`.

    Lives on the event loop on which it was made; `infer` may be called from any thread.
    """

    def __init__(self, model_name: str, answer: Answer, first_response_bounds: Sequence[float]) -> None:
        self.statistics = ModelStatistics(first_response_bounds)
        self._model_name = model_name
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def infer(self, request: InferenceRequest) -> None:
        """Take a request; its answers, and a refusal, come on its stream."""
        request.times.queued = time.monotonic()
        self._loop.call_soon_threadsafe(self._start, request)

    async def drain(self) -> None:
        """Return once every request taken so far has ended."""
        await asyncio.sleep(0)  # those handed over from this thread become tasks first
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, request: InferenceRequest) -> None:
        task = self._loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: InferenceRequest) -> None:
        try:
            last, rows = await self._answer(request)
        except ServingError as error:
            self._fail(request, error)
        except Exception as error:
            log.exception("model '%s': a request failed", self._model_name)
            self._fail(request, ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
        else:
            self._finish(request, last, rows)

    # The ways out: counted before the reader can see it

    def _finish(self, request: InferenceRequest, last: InferenceResponse, rows: int) -> None:
        if request.stream.ended:
            self._fail(request, ServingError(Code.CANCELLED, "the caller left"))
            return
        times = request.times
        times.compute_output_start = times.compute_end = time.monotonic()
        self.statistics.executed(rows, times)
        self.statistics.succeeded([times], rows)
        request.stream.finish(last)

    def _fail(self, request: InferenceRequest, error: ServingError) -> None:
        reason = _REASONS.get(error.code, Failure.BACKEND)
        if request.stream.ended:
            reason = Failure.CANCELED
        self.statistics.failed(reason, time.monotonic() - (request.times.received or request.times.queued))
        request.stream.fail(error)


_REASONS = {
    Code.CANCELLED: Failure.CANCELED,
    Code.INVALID: Failure.OTHER,
    Code.OVERLOADED: Failure.REJECTED,
    Code.UNAVAILABLE: Failure.REJECTED,
    Code.DEADLINE: Failure.REJECTED,
}
