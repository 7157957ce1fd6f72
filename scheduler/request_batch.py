"""Requests that run together, from their instance's point of view."""

import time
from collections.abc import Sequence

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse, Times
from backends.api.statistics import Failure, ModelStatistics
from backends.api.tensor import Tensor
from scheduler.batch import Waiting
from scheduler.endings import Endings
from scheduler.merge import BatchLayout


class RunningBatch:
    """A `RequestBatch` of the backends: checks what the model gives, counts it and puts it on the streams.

    Used on one thread. A request that has ended takes nothing more.
    """

    def __init__(
        self,
        batch: list[Waiting],
        layout: BatchLayout,
        endings: Endings,
        statistics: ModelStatistics,
        *,
        decoupled: bool,
    ) -> None:
        self.requests: list[InferenceRequest] = [waiting.request for waiting in batch]
        self._batch = batch
        self._layout = layout
        self._endings = endings
        self._statistics = statistics
        self._decoupled = decoupled
        self._open = dict.fromkeys(range(len(batch)))  # a set that keeps its order
        self._last_put = 0.0
        self._start = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether every request has ended."""
        return not self._open

    def is_open(self, index: int) -> bool:
        return index in self._open

    def inputs(self, index: int) -> list[Tensor]:
        """A request's inputs in the shapes that the model knows."""
        return list(self._layout.merge([self.requests[index]]).values())

    def begins(self, now: float) -> None:
        """It has waited for another batch until now."""
        self._start = now

    def executed(self, input_end: float, output_start: float) -> None:
        """The model was called once and has returned. Times are of `time.monotonic()`."""
        end = time.monotonic()
        for index in self._open:
            times = self.requests[index].times
            times.compute_start = self._start
            times.compute_input_end = input_end
            times.compute_output_start = output_start
            times.compute_end = end
        ran = Times(self._start, self._start, self._start, input_end, output_start, end)
        self._statistics.executed(sum(waiting.rows for waiting in self._batch), ran)

    def answer(self, outcomes: Sequence["InferenceResponse | ServingError"]) -> None:
        """The one outcome of each request."""
        batch, answers = [], []
        for index, outcome in enumerate(outcomes):
            if index not in self._open:
                continue
            try:
                if isinstance(outcome, ServingError):
                    raise outcome
                outcome.outputs = self._checked(index, outcome.outputs)
            except ServingError as error:
                self.fail(index, error)
                continue
            del self._open[index]
            batch.append(self._batch[index])
            answers.append(outcome)
        if batch:
            self._endings.responded(batch, answers)

    def answer_one(self, index: int, response: InferenceResponse) -> None:
        """The one response of a request, that came by itself."""
        if index not in self._open:
            return
        try:
            response.outputs = self._checked(index, response.outputs)
        except ServingError as error:
            self.fail(index, error)
            return
        del self._open[index]
        self._stamp(index)
        self._endings.responded([self._batch[index]], [response])

    def put(self, index: int, response: InferenceResponse) -> None:
        """One response of several."""
        if index not in self._open:
            return
        request = self.requests[index]
        asked = {output.name for output in request.outputs}
        if asked:
            response.outputs = [tensor for tensor in response.outputs if tensor.name in asked]
        self._count_response(index, "empty_response" if not response.outputs else "success")
        request.stream.put(response)

    def finish(self, index: int, last: InferenceResponse | None = None) -> None:
        """Nothing more comes."""
        if index not in self._open:
            return
        if last is not None:
            self.put(index, last)
        elif not self._batch[index].num_responses:
            self._count_response(index, "empty_response")
        del self._open[index]
        self._stamp(index)
        self._endings.finished(self._batch[index])

    def reschedule(self, index: int) -> None:
        """It runs again in a later batch, which the scheduler forms once this one has run."""
        if index in self._open:
            del self._open[index]
            self._batch[index].again = True
            self._endings.rescheduled(self._batch[index])

    def fail(self, index: int, error: ServingError, reason: Failure = Failure.BACKEND) -> None:
        if index not in self._open:
            return
        if self._decoupled:
            self._count_response(index, "cancel" if error.code is Code.CANCELLED else "fail")
        del self._open[index]
        self._endings.failed(self._batch[index], error, reason)

    def fail_all(self, error: ServingError) -> None:
        """Every request that is still open."""
        for index in list(self._open):
            self.fail(index, error)

    def cancelled(self, index: int) -> None:
        """The reader has left."""
        if index in self._open:
            del self._open[index]
            self._endings.cancelled(self._batch[index])

    def _checked(self, index: int, outputs: list[Tensor]) -> list[Tensor]:
        return self._layout.outputs_of(self.requests[index], outputs)

    def _stamp(self, index: int) -> None:
        """Times of a request that ended by itself: up to now the model was at it."""
        times, now = self.requests[index].times, time.monotonic()
        times.compute_start = times.compute_start or self._start
        times.compute_input_end = times.compute_input_end or self._start
        times.compute_output_start = times.compute_end = now

    def _count_response(self, index: int, outcome: str) -> None:
        if not self._decoupled:
            return
        now = time.monotonic()
        infer = now - (self._last_put or self._start)
        waiting = self._batch[index]
        times = waiting.request.times
        waited = now - (times.received or times.queued)
        self._statistics.responded(waiting.num_responses, outcome, infer=infer, since_arrival=waited)
        waiting.num_responses += 1
        self._last_put = now
