"""How requests leave a model: each takes one of these ways, once, and is counted on it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from backends.api.errors import ServingError
from backends.api.request import InferenceResponse
from backends.api.statistics import Failure, ModelStatistics
from backends.api.stream import finish_all
from backends.api.tensor import Tensor
from scheduler.batch import Waiting
from scheduler.ordering import OrderedDelivery
from scheduler.response_cache import ResponseCache


class Endings:
    """Ends requests and keeps the statistics. With `order`, they end in the order in which they were queued.

    A request is counted before its reader can see its end, so that whoever has an answer finds it in the statistics.
    """

    def __init__(
        self,
        model: str,
        version: str,
        statistics: ModelStatistics,
        order: OrderedDelivery | None,
        cache: ResponseCache | None,
    ) -> None:
        self._model = model
        self._version = version
        self._statistics = statistics
        self._order = order
        self._cache = cache

    def cancelled(self, waiting: Waiting) -> None:
        """Its reader has left, so there is nobody to tell."""
        self._end(waiting, partial(self._count, waiting, Failure.CANCELED))

    def failed(self, waiting: Waiting, error: ServingError, reason: Failure) -> None:
        self._end(waiting, partial(self._fail, waiting, error, reason))

    def answered(self, batch: Sequence[Waiting], answers: Sequence[list[Tensor]]) -> None:
        """The outputs of one execution, each request's own."""
        model, version = self._model, self._version
        self.responded(batch, [InferenceResponse(model, version, outputs) for outputs in answers])

    def responded(self, batch: Sequence[Waiting], responses: Sequence[InferenceResponse]) -> None:
        """The same with whole responses."""
        if self._order is None:
            self._answer(batch, responses)
            return
        for waiting, response in zip(batch, responses, strict=True):
            self._order.deliver(waiting, partial(self._answer, [waiting], [response]))

    def finished(self, waiting: Waiting) -> None:
        """All its answers have been put on its stream before."""
        self._end(waiting, partial(self._finish, waiting))

    def rescheduled(self, waiting: Waiting) -> None:
        """It has run and stays open to run once more: as in Triton, this counts as a request, from when it was queued."""
        times = waiting.request.times
        self._statistics.succeeded([replace(times, received=times.queued)], waiting.rows)
        times.queued = times.compute_end

    def _end(self, waiting: Waiting, act: Callable[[], None]) -> None:
        if self._order is None:
            act()
        else:
            self._order.deliver(waiting, act)

    def _fail(self, waiting: Waiting, error: ServingError, reason: Failure) -> None:
        self._count(waiting, Failure.CANCELED if waiting.request.stream.ended else reason)
        waiting.request.stream.fail(error)

    def _finish(self, waiting: Waiting) -> None:
        if waiting.request.stream.ended:
            self._count(waiting, Failure.CANCELED)
        else:
            self._statistics.succeeded([waiting.request.times], waiting.rows)
            waiting.request.stream.finish()

    def _answer(self, batch: Sequence[Waiting], responses: Sequence[InferenceResponse]) -> None:
        answered, rows = [], 0
        for waiting, response in zip(batch, responses, strict=True):
            if waiting.request.stream.ended:
                self._count(waiting, Failure.CANCELED)
            else:
                answered.append(waiting.request.times)
                rows += waiting.rows
                self._keep(waiting, response.outputs)
        self._statistics.succeeded(answered, rows)
        for waiting, response in zip(batch, responses, strict=True):
            response.id = waiting.request.id
        finish_all((waiting.request.stream, response) for waiting, response in zip(batch, responses, strict=True))

    def _keep(self, waiting: Waiting, outputs: list[Tensor]) -> None:
        if self._cache is None or waiting.cache_key is None:
            return
        start = time.monotonic()
        self._cache.put(waiting.cache_key, outputs)
        self._statistics.missed(waiting.cache_lookup + time.monotonic() - start)

    def _count(self, waiting: Waiting, reason: Failure) -> None:
        times = waiting.request.times
        executed = times if times.compute_end else None
        self._statistics.failed(reason, time.monotonic() - (times.received or times.queued), executed)
