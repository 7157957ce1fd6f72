"""A loaded tensor model: takes requests, runs them in batches on its instances, answers on their streams."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from backends.api.base import RequestBackend, TensorBackend
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig, OldestStrategy
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.statistics import Failure, ModelStatistics
from scheduler.alarm import Alarm
from scheduler.batch import BatchPolicy, Waiting
from scheduler.dynamic import STOPPING, BatchScheduler
from scheduler.endings import Endings
from scheduler.hosts import ModelParts, host_of
from scheduler.instances import Instances
from scheduler.merge import BatchLayout
from scheduler.ordering import OrderedDelivery
from scheduler.rate_limit import RateLimiter
from scheduler.response_cache import ResponseCache, key_of, num_input_bytes
from scheduler.sequence import SequenceScheduler
from scheduler.sequence_slots import SlotBackend
from scheduler.stand_in import RunTime, StandIn

_LOG = logging.getLogger(__name__)
_LARGE = 64 * 1024  # bytes of input that are hashed on the caller's thread: about 60 µs


class TensorModel:
    """A `LiveModel` over a tensor backend.

    Every request that `infer` takes is ended once: by its outputs, an error, or its reader's cancel, and is counted
    once in `statistics`. Only a model that has been quick runs on the caller's thread (see `stand_in`): a slow one delays
    nobody else.
    """

    infers_on_any_thread = True

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        backend: TensorBackend | RequestBackend,
        warmup_folder: Path,
        *,
        alarm: Alarm,
        cache: ResponseCache | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        """Over an open backend, which has completed `config`. Serves nothing before `set_instances`.

        `cache` is used where the config says so.
        """
        cache = cache if config.response_cache else None
        self.statistics = ModelStatistics(config.first_response_bounds)
        self.labels: Mapping[str, Sequence[str]] = {}  # output -> class names, for the classification extension
        self.namespace = ""
        self.load_seconds: float | None = None
        self._config = config
        self._version = version
        self._backend = backend
        self._cache = cache
        self._layout = BatchLayout(config)
        self._policy = BatchPolicy.of(config)
        self._order = OrderedDelivery() if _preserves_order(config, self._policy) else None
        self._scheduler = self._make_scheduler(alarm)
        self.run_time = RunTime()
        self._enqueue: Callable[[Waiting], object] = self._scheduler.submit
        if isinstance(self._scheduler, BatchScheduler):
            self._enqueue = StandIn(self._scheduler, self.run_time, joins=self._policy.max_rows > 0).submit
        self._readers = ThreadPoolExecutor(1, f"{config.name}_cache")  # its thread starts at first use
        self._endings = Endings(config.name, version, self.statistics, self._order, cache)
        parts = ModelParts(
            config,
            version,
            self._layout,
            self._scheduler,
            self._endings,
            self.statistics,
            self.run_time,
            warmup_folder,
        )
        self._instances: Instances[Any] = Instances(host_of(parts, backend), limiter)
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

    async def set_instances(self, groups: tuple[InstanceGroup, ...]) -> None:
        """Run on these instance groups from now on. Requests go on, and so do the statistics. One call at a time.

        Raises ServingError for one that cannot be had; all is then as before.
        """
        config = replace(self._config, instance_groups=groups)
        await self._instances.resize(config, self._backend.num_gpus)
        self._config = config

    def suspend(self, error: ServingError) -> None:
        """No instance is left for now: whoever waits or comes gets `error`, until `resume`. On any thread."""
        for waiting in self._scheduler.suspend(error):
            self._endings.failed(waiting, error, Failure.REJECTED)

    def resume(self) -> None:
        self._scheduler.resume()

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
            self._enqueue(waiting)
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

    def _shut(self) -> None:
        self._readers.shutdown()
        if isinstance(self._backend, RequestBackend):
            self._backend.stopping()
        self._scheduler.close()
        self._instances.close()
        self._scheduler.closed()
        self._backend.close()


def _preserves_order(config: ModelConfig, policy: BatchPolicy) -> bool:
    sequence = config.sequence_batching
    if sequence is not None and isinstance(sequence.strategy, OldestStrategy):
        return sequence.strategy.preserve_ordering
    return policy.preserve_ordering
