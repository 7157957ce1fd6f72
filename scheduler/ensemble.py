"""A loaded ensemble: takes requests and walks each through its steps."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from backends.api.base import LiveModel, check_ready, is_ready
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.statistics import Failure, ModelStatistics
from backends.api.tensor import Tensor
from scheduler.dynamic import STOPPING
from scheduler.ensemble_graph import EnsembleGraph
from scheduler.ensemble_parts import EnsembleParts, Find, sequence_parameters
from scheduler.ensemble_run import EnsembleRun
from scheduler.merge import BatchLayout
from scheduler.response_cache import ResponseCache, key_of

_LOG = logging.getLogger(__name__)


def load_ensemble(config: ModelConfig, version: str, find: Find, cache: ResponseCache | None = None) -> "EnsembleModel":
    """`config` with the models that are live now; `cache` is used where the config says so.

    Raises ServingError(INVALID) for what does not fit together, UNSUPPORTED for a cache of several answers.
    """
    assert config.ensemble is not None
    models = []
    for step in config.ensemble.steps:
        try:
            wanted = str(step.model_version) if step.model_version > 0 else ""
            models.append(find(step.model_name, wanted, namespace=step.model_namespace).config)
        except ServingError as error:
            text = f"ensemble '{config.name}' depends on '{step.model_name}' which has no loaded version"
            if step.model_version > 0:
                text = (
                    f"ensemble '{config.name}' depends on '{step.model_name}' whose required version "
                    f"{step.model_version} is not loaded"
                )
            raise ServingError(Code.INVALID, f"{text}: {error.message}") from error
    graph = EnsembleGraph.of(config, models)
    if config.response_cache and graph.is_decoupled:
        text = f"response caching does not support a decoupled transaction policy, which is set for {config.name}"
        raise ServingError(Code.UNSUPPORTED, text)
    return EnsembleModel(config, version, graph, find, cache if config.response_cache else None)


class EnsembleModel:
    """A `LiveModel` whose `infer` walks its steps, which are looked up anew for each request.

    Lives on the event loop on which it was made; `infer` may be called from any thread. Every request ends once and is
    counted once in `statistics`, whose times of computing are the sums over its steps.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        graph: EnsembleGraph,
        find: Find,
        cache: ResponseCache | None = None,
    ) -> None:
        assert config.ensemble is not None
        self.config = replace(config, decoupled=graph.is_decoupled)
        self.version = version
        self.statistics = ModelStatistics()
        self.labels: Mapping[str, Sequence[str]] = {}  # output -> class names, for the classification extension
        self.namespace = ""
        self.load_seconds: float | None = None
        self._parts = EnsembleParts(graph, self.config, version, find, BatchLayout(config))
        self._cache = cache
        self._loop = asyncio.get_running_loop()
        self._num_open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closing = False

    @property
    def is_ready(self) -> bool:
        """Whether every step's model would take a request now."""
        try:
            return not self._closing and all(map(is_ready, self._models()))
        except ServingError:
            return False

    async def check_ready(self) -> bool:
        return all(await asyncio.gather(*map(check_ready, self._models())))

    def _models(self) -> list[LiveModel]:
        """Those of the steps. Raises ServingError for one that is not there."""
        return [self._parts.live_model(step) for step in self._parts.graph.steps]

    def infer(self, request: InferenceRequest) -> None:
        """Take a request; its answers come on its stream. Raises ServingError(UNAVAILABLE) once closing."""
        if self._closing:
            self.statistics.failed(Failure.REJECTED)
            raise ServingError(Code.UNAVAILABLE, STOPPING, reason="closing")
        request.times.queued = time.monotonic()
        if _is_running(self._loop):
            self._start(request)
        else:
            self._loop.call_soon_threadsafe(self._start, request)

    async def close(self) -> None:
        """Return once every request taken has ended."""
        self._closing = True
        await asyncio.sleep(0)  # those handed over from other threads come first
        await self._drained.wait()

    def _start(self, request: InferenceRequest) -> None:
        self._num_open += 1
        self._drained.clear()
        if self._cache is None:
            EnsembleRun(self._parts, request, self._ended).start()
            return
        task = self._loop.create_task(self._look_up(request, self._cache))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(self, request: InferenceRequest, cache: ResponseCache) -> None:
        start = time.monotonic()
        try:
            key, outputs = await asyncio.to_thread(self._cached, request, cache)
        except Exception as error:
            _LOG.exception("ensemble '%s': the response cache failed", self.config.name)
            self.statistics.failed(Failure.OTHER)
            self._leave()
            request.stream.fail(ServingError(Code.INTERNAL, f"the response cache failed: {error}"))
            return
        lookup = time.monotonic() - start
        if outputs is None:
            EnsembleRun(self._parts, request, partial(self._ended, key=key, lookup=lookup)).start()
            return
        request.times.compute_end = time.monotonic()
        self.statistics.hit(request.times, lookup)
        self._leave()
        parameters = sequence_parameters(request)
        request.stream.finish(InferenceResponse(self.config.name, self.version, outputs, request.id, parameters))

    def _cached(self, request: InferenceRequest, cache: ResponseCache) -> tuple[bytes, list[Tensor] | None]:
        key = key_of(self.config.name, self.version, request)
        return key, cache.get(key)

    def _ended(
        self,
        run: EnsembleRun,
        end: ServingError | InferenceResponse | None,
        *,
        key: bytes | None = None,
        lookup: float = 0.0,
    ) -> None:
        """Count it, before its reader can see the end."""
        self._leave()
        times = run.times()
        if isinstance(end, ServingError):
            reason = _REASONS.get(end.code, Failure.BACKEND)
            self.statistics.failed(reason, times.compute_end - (times.received or times.queued))
            return
        self.statistics.executed(run.num_rows, times)
        self.statistics.succeeded([times], run.num_rows)
        if self._cache is not None and key is not None and end is not None:
            start = time.monotonic()
            self._cache.put(key, end.outputs)
            self.statistics.missed(lookup + time.monotonic() - start)

    def _leave(self) -> None:
        self._num_open -= 1
        if not self._num_open:
            self._drained.set()


_REASONS = {
    Code.CANCELLED: Failure.CANCELED,
    Code.INVALID: Failure.OTHER,
    Code.OVERLOADED: Failure.REJECTED,
    Code.UNAVAILABLE: Failure.REJECTED,
    Code.DEADLINE: Failure.REJECTED,
}


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this is the thread of `loop`."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
