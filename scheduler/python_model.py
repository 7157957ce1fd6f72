"""From a config and a version folder to a serving custom model."""

import asyncio
from functools import partial
from pathlib import Path

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest
from backends.python.backend import PythonBackend
from backends.python.custom_metrics import CustomMetrics
from backends.python.instance import PythonInstance
from scheduler.alarm import Alarm
from scheduler.instances import InstanceThread, placements
from scheduler.rate_limit import Claim, RateLimiter
from scheduler.response_cache import ResponseCache
from scheduler.sequence import SequenceScheduler
from scheduler.tensor_model import TensorModel
from scheduler.warmup import make_requests

_WARM_UP_PATIENCE = 600.0  # seconds
_READINESS_PATIENCE = 5.0


class PythonModel(TensorModel):
    """A `LiveModel` of custom Python code: `TensorModel`'s queue before processes that take requests as they are."""

    def __init__(
        self, config: ModelConfig, version: str, backend: PythonBackend, alarm: Alarm, cache: ResponseCache | None
    ) -> None:
        super().__init__(config, version, backend, alarm, cache)
        self.backend = backend
        self._serving: list[PythonInstance] = []

    def make_instance(self, placement: Placement) -> PythonInstance:
        """One that will serve, on the thread that calls."""
        instance = self.backend.request_instance(placement)
        self._serving.append(instance)
        return instance

    def instance_ended(self, instance: PythonInstance) -> None:
        """What its process knew is gone, of sequences too. On the instance's thread."""
        if isinstance(self._scheduler, SequenceScheduler):
            self._scheduler.lose(instance.gate)

    async def check_ready(self) -> bool:
        """What the model's own `is_ready` says in every instance; one that does not answer in time is not ready."""
        answers = [asyncio.wrap_future(instance.ask_ready()) for instance in self._serving]
        try:
            return all(await asyncio.wait_for(asyncio.gather(*answers), _READINESS_PATIENCE))
        except TimeoutError:
            return False

    @property
    def custom_metrics(self) -> CustomMetrics:
        return self.backend.metrics


async def load_python_model(
    backend: PythonBackend,
    config: ModelConfig,
    version: str,
    warmup_folder: Path,
    *,
    alarm: Alarm,
    cache: ResponseCache | None = None,
    limiter: RateLimiter | None = None,
) -> PythonModel:
    """Complete `config`, start every instance and serve. Raises ServingError with nothing left behind, `backend` closed."""
    try:
        config = await asyncio.to_thread(backend.complete, config)
        _check_supported(config)
        model = PythonModel(config, version, backend, alarm, cache if config.response_cache else None)
        threads, claims = await _start_instances(model, limiter)
    except BaseException:
        backend.stopping()
        await asyncio.shield(asyncio.to_thread(backend.close))
        raise
    backend.supervisor.on_end = model.instance_ended
    backend.supervisor.on_down = model.suspend
    backend.supervisor.on_up = model.resume
    model.start(threads, claims)
    try:
        await _warm_up(model, warmup_folder)
    except BaseException:
        await model.close()
        raise
    return model


async def _start_instances(
    model: PythonModel, limiter: RateLimiter | None
) -> tuple[list[InstanceThread[PythonInstance]], list[Claim]]:
    backend = model.backend
    threads: list[InstanceThread[PythonInstance]] = []
    claims: list[Claim] = []
    try:
        for group, placement in placements(model.config, backend.num_gpus):
            claim = limiter.claim(group, placement) if limiter is not None and group.resources else None
            if claim is not None:
                claims.append(claim)
            serve = model.wait_for_close if group.passive else partial(model.serve_requests, claim)
            make = backend.request_instance if group.passive else model.make_instance
            threads.append(InstanceThread(placement, partial(make, placement), serve))
        outcomes = await asyncio.gather(
            *(asyncio.wrap_future(thread.ready) for thread in threads), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
    except BaseException:
        backend.stopping()
        for thread in threads:
            thread.abandon()
        await asyncio.shield(asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads)))
        for claim in claims:
            claim.drop()
        raise
    return threads, claims


def _check_supported(config: ModelConfig) -> None:
    if config.sequence_batching is not None and config.sequence_batching.states:
        raise ServingError(
            Code.UNSUPPORTED,
            f"model '{config.name}': a custom model keeps the state of its sequences itself, expected no "
            "sequence_batching.state",
        )


async def _warm_up(model: PythonModel, folder: Path) -> None:
    """Each sample of `model_warmup`, as often as there are instances to take it."""
    config = model.config
    for sample in config.warmup:
        requests = [
            request
            for _ in range(max(1, sample.count) * max(1, len(model.backend.instances)))
            for request in make_requests(config, sample, folder)
        ]
        if config.sequence_batching is not None:
            for number, request in enumerate(requests, start=1):
                request.sequence_id, request.sequence_start, request.sequence_end = number, True, True
        try:
            await asyncio.wait_for(_run_all(model, requests), _WARM_UP_PATIENCE)
        except (ServingError, TimeoutError) as error:
            code = error.code if isinstance(error, ServingError) else Code.DEADLINE
            raise ServingError(code, f"failed to run warmup sample '{sample.name}': {error}") from error


async def _run_all(model: PythonModel, requests: list[InferenceRequest]) -> None:
    for request in requests:
        model.infer(request)
    for request in requests:
        async for _ in request.stream:
            pass
