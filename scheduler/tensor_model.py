"""A loaded tensor model: takes requests, runs them in batches on its instances, answers on their streams."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any

from backends.api.base import RequestBackend, RequestInstance, TensorBackend, TensorInstance
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, OldestStrategy
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.statistics import Failure, ModelStatistics
from backends.api.tensor import Tensor
from scheduler.alarm import Alarm
from scheduler.batch import BatchPolicy, Waiting
from scheduler.dynamic import STOPPING, BatchScheduler, Seat
from scheduler.endings import Endings
from scheduler.instances import InstanceThread
from scheduler.merge import BatchLayout
from scheduler.ordering import OrderedDelivery
from scheduler.rate_limit import Claim
from scheduler.request_batch import RunningBatch
from scheduler.response_cache import ResponseCache, key_of, num_input_bytes
from scheduler.sequence import SequenceScheduler
from scheduler.sequence_slots import SlotBackend

_LOG = logging.getLogger(__name__)
Run = Callable[[list[Waiting]], None]
_LARGE = 64 * 1024  # bytes of input that are hashed on the caller's thread: about 60 µs


class TensorModel:
    """A `LiveModel` over a tensor backend.

    Every request that `infer` takes is ended once: by its outputs, an error, or its reader's cancel, and is counted
    once in `statistics`. Nothing runs on the caller's thread, so a slow model delays nobody else; for quick models that was tried
    too, and did not pay: requests that come together then share no batch and no second core.
    """

    infers_on_any_thread = True

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        backend: TensorBackend | RequestBackend,
        alarm: Alarm,
        cache: ResponseCache | None = None,
    ) -> None:
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, Sequence[str]] = {}  # output -> class names, for the classification extension
        self._config = config
        self._version = version
        self._backend = backend
        self._cache = cache
        self._layout = BatchLayout(config)
        self._policy = BatchPolicy.of(config)
        self._order = OrderedDelivery() if _preserves_order(config, self._policy) else None
        self._scheduler = self._make_scheduler(alarm)
        self._readers = ThreadPoolExecutor(1, f"{config.name}_cache")  # its thread starts at first use
        self._endings = Endings(config.name, version, self.statistics, self._order, cache)
        self._threads: list[InstanceThread[Any]] = []
        self._claims: list[Claim] = []
        self._drained = threading.Event()
        self._closing: asyncio.Future[None] | None = None

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def version(self) -> str:
        return self._version

    @property
    def num_waiting(self) -> int:
        """Requests taken and not yet executing: nv_inference_pending_request_count."""
        return self._scheduler.num_waiting

    @property
    def is_ready(self) -> bool:
        """False while no instance is left."""
        return not self._scheduler.is_suspended

    def infer(self, request: InferenceRequest) -> None:
        """Queue a request; its one answer comes on `request.stream`.

        Raises ServingError at once: INVALID for more rows than max_batch_size, OVERLOADED with a full queue,
        UNAVAILABLE once closing.
        """
        if self._closing is not None:
            self.statistics.failed(Failure.REJECTED)
            raise ServingError(Code.UNAVAILABLE, STOPPING, reason="closing")
        now = time.monotonic()
        request.times.queued = now
        rows = self._layout.rows_of(request)
        limit = self._config.max_batch_size
        if limit and rows > limit:
            self.statistics.failed(Failure.OTHER)
            raise ServingError(
                Code.INVALID,
                f"{request.label} inference request batch-size must be <= {limit} for '{self._config.name}'",
            )
        waiting = self._wait(request, rows, now)
        if self._cache is None:
            self._submit(waiting)
        elif self._cache.may_block or num_input_bytes(request) > _LARGE:
            try:
                self._readers.submit(self._look_up_aside, waiting, self._cache)
            except RuntimeError:  # closed by another thread since the check above
                self.statistics.failed(Failure.REJECTED)
                raise ServingError(Code.UNAVAILABLE, STOPPING, reason="closing") from None
        else:
            self._look_up(waiting, self._cache)

    async def close(self) -> None:
        """Answer what was taken, then close the instances and the backend. May be called again, and waits as well."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._shut))
        await asyncio.shield(self._closing)

    def start(self, threads: Sequence[InstanceThread[Any]], claims: Sequence[Claim] = ()) -> None:
        """Serve on `threads`, whose instances are ready; the model owns them and `claims` from here on."""
        self._threads = list(threads)
        self._claims = list(claims)
        for thread in threads:
            thread.go()

    def serve(self, claim: Claim | None, instance: TensorInstance) -> None:
        """The life of an instance's thread: a batch, its answers, the next, until the model is closed and drained."""
        self._serve(Seat(), claim, partial(self._run_merged, instance))

    def serve_requests(self, claim: Claim | None, instance: RequestInstance) -> None:
        """The same for an instance that takes the requests themselves, and may answer them later."""
        self._serve(Seat(instance.gate), claim, partial(self._run_unmerged, instance))
        instance.drain()

    def suspend(self, error: ServingError) -> None:
        """No instance is left for now: whoever waits or comes gets `error`, until `resume`. On any thread."""
        for waiting in self._scheduler.suspend(error):
            self._endings.failed(waiting, error, Failure.REJECTED)

    def resume(self) -> None:
        self._scheduler.resume()

    def wait_for_close(self, instance: TensorInstance | RequestInstance) -> None:
        """The life of a passive instance's thread."""
        self._drained.wait()

    def _serve(self, seat: Seat, claim: Claim | None, run: Run) -> None:
        while self._serve_one(seat, claim, run):
            pass

    def _make_scheduler(self, alarm: Alarm) -> BatchScheduler | SequenceScheduler:
        expect = self._order.expect if self._order else None
        if self._config.sequence_batching is None:
            return BatchScheduler(self._policy, self._refuse, alarm, expect)
        with_slots = isinstance(self._backend, SlotBackend)
        return SequenceScheduler(self._config, self._refuse, alarm, expect, with_slots=with_slots)

    # The way in

    def _wait(self, request: InferenceRequest, rows: int, now: float) -> Waiting:
        level = self._policy.level_of(request.priority)
        deadline = request.deadline
        return Waiting(
            request=request,
            rows=rows,
            key=self._layout.key_of(request),
            level=level,
            queued=now,
            timeout=now + self._policy.timeout_of(level, request.timeout_us),
            deadline=inf if deadline is None else deadline,
        )

    def _submit(self, waiting: Waiting) -> None:
        try:
            self._scheduler.submit(waiting)
        except ServingError as error:
            self.statistics.failed(Failure.OTHER if error.code is Code.INVALID else Failure.REJECTED)
            raise
        waiting.request.stream.on_cancel(partial(self._cancel, waiting))

    def _look_up(self, waiting: Waiting, cache: ResponseCache) -> None:
        request = waiting.request
        start = time.monotonic()
        waiting.cache_key = key_of(self._config.name, self._version, request)
        outputs = cache.get(waiting.cache_key)
        end = time.monotonic()
        waiting.cache_lookup = end - start
        if outputs is None:
            self._submit(waiting)
            return
        request.times.compute_end = end
        self.statistics.hit(request.times, waiting.cache_lookup)
        request.stream.finish(InferenceResponse(self._config.name, self._version, outputs, request.id))

    def _look_up_aside(self, waiting: Waiting, cache: ResponseCache) -> None:
        """The same off the caller's thread, so that a refusal comes on the stream."""
        try:
            self._look_up(waiting, cache)
        except ServingError as error:
            waiting.request.stream.fail(error)
        except Exception as error:
            _LOG.exception("model '%s': the response cache failed", self._config.name)
            self.statistics.failed(Failure.OTHER)
            waiting.request.stream.fail(ServingError(Code.INTERNAL, f"the response cache failed: {error}"))

    def _cancel(self, waiting: Waiting) -> None:
        if self._scheduler.discard(waiting):
            self._endings.cancelled(waiting)

    def _refuse(self, waiting: Waiting, error: ServingError) -> None:
        self._endings.failed(waiting, error, Failure.REJECTED)

    # On an instance's thread

    def _serve_one(self, seat: Seat, claim: Claim | None, run: Run) -> bool:
        """One batch; a function of its own so that nothing of it stays referenced while the thread waits."""
        batch = self._scheduler.take(seat)
        if batch is None:
            return False
        if claim is None:
            self._run(batch, run)
        else:
            with claim:
                self._run(batch, run)
        return True

    def _run(self, batch: list[Waiting], run: Run) -> None:
        live = self._without_cancelled(batch)
        if not live:
            return
        try:
            run(live)
        except ServingError as error:
            self._fail_all(live, error)
        except BaseException as error:  # whatever a model raises, SystemExit too, ends its batch and not this thread
            _LOG.exception("model '%s' version %s failed to execute", self._config.name, self._version)
            text = str(error) or type(error).__name__
            self._fail_all(live, ServingError(Code.INTERNAL, f"model '{self._config.name}' failed to execute: {text}"))

    def _run_merged(self, instance: TensorInstance, batch: list[Waiting]) -> None:
        self._endings.answered(batch, self._execute([waiting.request for waiting in batch], instance))

    def _run_unmerged(self, instance: RequestInstance, batch: list[Waiting]) -> None:
        running = RunningBatch(batch, self._layout, self._endings, self.statistics, decoupled=self._config.decoupled)
        instance.execute_requests(running)

    def _execute(self, requests: list[InferenceRequest], instance: TensorInstance) -> list[list[Tensor]]:
        start = time.monotonic()
        parts = self._layout.parts_of(requests)
        inputs = self._layout.merge(requests)
        merged = time.monotonic()
        outputs = instance.execute(inputs, _wanted(requests))
        executed = time.monotonic()
        answers = self._layout.split(outputs, parts)
        end = time.monotonic()
        for request in requests:
            times = request.times
            times.compute_start = start
            times.compute_input_end = merged
            times.compute_output_start = executed
            times.compute_end = end
        self.statistics.executed(parts[-1].stop, requests[0].times)
        return answers

    def _without_cancelled(self, batch: list[Waiting]) -> list[Waiting]:
        live = []
        for waiting in batch:
            if waiting.request.stream.ended:
                self._endings.cancelled(waiting)
            else:
                live.append(waiting)
        return live

    def _fail_all(self, batch: list[Waiting], error: ServingError) -> None:
        for waiting in batch:
            self._endings.failed(waiting, error, Failure.BACKEND)

    def _shut(self) -> None:
        self._readers.shutdown()
        if isinstance(self._backend, RequestBackend):
            self._backend.stopping()
        self._scheduler.close()
        self._drained.set()
        for thread in self._threads:
            thread.join()
        self._scheduler.closed()
        for claim in self._claims:
            claim.drop()
        self._backend.close()


def _preserves_order(config: ModelConfig, policy: BatchPolicy) -> bool:
    sequence = config.sequence_batching
    if sequence is not None and isinstance(sequence.strategy, OldestStrategy):
        return sequence.strategy.preserve_ordering
    return policy.preserve_ordering


def _wanted(requests: list[InferenceRequest]) -> list[str]:
    """The outputs somebody in a batch asked for; [] for all."""
    if any(not request.outputs for request in requests):
        return []
    return list({output.name: None for request in requests for output in request.outputs})
