"""The life of an instance on its thread: made and warmed up, then a batch, its answers, the next."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic

from backends.api.base import Placement, RequestBackend, RequestInstance, TensorBackend, TensorInstance
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest
from backends.api.statistics import Failure, ModelStatistics
from backends.api.tensor import Tensor
from scheduler.batch import Waiting
from scheduler.dynamic import BatchScheduler
from scheduler.endings import Endings
from scheduler.instances import InstanceT
from scheduler.loop_seat import LoopSeat
from scheduler.merge import BatchLayout
from scheduler.rate_limit import Claim
from scheduler.request_batch import RunningBatch
from scheduler.seats import Seat
from scheduler.sequence import SequenceScheduler
from scheduler.stand_in import RunTime
from scheduler.warmup import warm_up, warm_up_requests

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What the instances of one version of a model share. `warmup_folder` holds the data files of `model_warmup`."""

    config: ModelConfig
    version: str
    layout: BatchLayout
    scheduler: BatchScheduler | SequenceScheduler
    endings: Endings
    statistics: ModelStatistics
    run_time: RunTime
    warmup_folder: Path


class _Host(ABC, Generic[InstanceT]):
    """A `Host`, but for how an instance is made and how it runs a batch."""

    def __init__(self, parts: ModelParts) -> None:
        self._parts = parts

    @abstractmethod
    def _run(self, instance: InstanceT, batch: list[Waiting]) -> None: ...

    def serve(self, seat: Seat, claim: Claim | None, instance: InstanceT) -> None:
        while self._serve_one(seat, claim, instance):
            pass

    def begin(self, instance: InstanceT) -> None:
        """Nothing to see to."""

    def dismiss(self, seat: Seat) -> None:
        self._parts.scheduler.dismiss(seat)

    def give_up(self) -> None:
        """Nothing: what takes long cannot be stopped."""

    def _serve_one(self, seat: Seat, claim: Claim | None, instance: InstanceT) -> bool:
        """One batch; a function of its own so that nothing of it stays referenced while the thread waits."""
        batch = self._parts.scheduler.take(seat)
        if batch is None:
            return False
        if claim is None:
            self._run_live(instance, batch)
        else:
            with claim:
                self._run_live(instance, batch)
                self._settle(instance)
        return True

    def _settle(self, instance: InstanceT) -> None:
        """Return when a batch that has begun needs its claim no more."""

    def _run_live(self, instance: InstanceT, batch: list[Waiting]) -> None:
        live = self._without_cancelled(batch)
        if not live:
            return
        model, version = self._parts.config.name, self._parts.version
        try:
            self._run(instance, live)
        except ServingError as error:
            self._fail_all(live, error)
        except BaseException as error:  # whatever a model raises, SystemExit too, ends its batch and not this thread
            _LOG.exception("model '%s' version %s failed to execute", model, version)
            text = str(error) or type(error).__name__
            self._fail_all(live, ServingError(Code.INTERNAL, f"model '{model}' failed to execute: {text}"))

    def _without_cancelled(self, batch: list[Waiting]) -> list[Waiting]:
        live = []
        for waiting in batch:
            if waiting.request.stream.ended:
                self._parts.endings.cancelled(waiting)
            else:
                live.append(waiting)
        return live

    def _fail_all(self, batch: list[Waiting], error: ServingError) -> None:
        for waiting in batch:
            self._parts.endings.failed(waiting, error, Failure.BACKEND)


class TensorHost(_Host[TensorInstance]):
    """For instances that run merged batches."""

    def __init__(self, parts: ModelParts, backend: TensorBackend) -> None:
        super().__init__(parts)
        self._backend = backend

    def make(self, placement: Placement) -> TensorInstance:
        parts = self._parts
        try:
            instance = self._backend.instance(placement)
        except ServingError:
            raise
        except Exception as error:
            raise _as_load_error(parts.config, error) from error
        try:
            warm_up(instance, parts.config, parts.layout, parts.warmup_folder)
        except BaseException:
            instance.close()
            raise
        return instance

    def seat(self, instance: TensorInstance) -> Seat:
        return Seat()

    def serve(self, seat: Seat, claim: Claim | None, instance: TensorInstance) -> None:
        if claim is None and getattr(instance, "runs_on_any_thread", False):
            seat.run = partial(self._run_live, instance)
        super().serve(seat, claim, instance)

    def _run(self, instance: TensorInstance, batch: list[Waiting]) -> None:
        self._parts.endings.answered(batch, self._execute([waiting.request for waiting in batch], instance))

    def _execute(self, requests: list[InferenceRequest], instance: TensorInstance) -> list[list[Tensor]]:
        layout = self._parts.layout
        start = time.monotonic()
        parts = layout.parts_of(requests)
        inputs = layout.merge(requests)
        merged = time.monotonic()
        used = time.thread_time()  # not the wall clock: a thread waits for the interpreter's lock as well
        outputs = instance.execute(inputs, _wanted(requests))
        self._parts.run_time.add(time.thread_time() - used)
        executed = time.monotonic()
        answers = layout.split(outputs, parts)
        end = time.monotonic()
        for request in requests:
            times = request.times
            times.compute_start = start
            times.compute_input_end = merged
            times.compute_output_start = executed
            times.compute_end = end
        self._parts.statistics.executed(parts[-1].stop, requests[0].times)
        return answers


class RequestHost(_Host[RequestInstance]):
    """For instances that take the requests themselves, and may answer them later."""

    def __init__(self, parts: ModelParts, backend: RequestBackend) -> None:
        super().__init__(parts)
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        # a claim on resources is for one batch
        self._takes_ahead = not parts.config.decoupled and not any(
            group.resources for group in parts.config.instance_groups
        )

    def make(self, placement: Placement) -> RequestInstance:
        parts = self._parts
        instance = self._backend.request_instance(placement)
        try:
            warm_up_requests(instance, parts.config, parts.layout, parts.warmup_folder)
        except BaseException:
            instance.close()
            raise
        return instance

    def seat(self, instance: RequestInstance) -> Seat:
        return Seat(instance.gate)

    def begin(self, instance: RequestInstance) -> None:
        instance.keep_alive()

    def give_up(self) -> None:
        self._backend.stopping()

    def serve(self, seat: Seat, claim: Claim | None, instance: RequestInstance) -> None:
        if claim is None:
            run = partial(self._run_live, instance)
            instance.serve_on(self._loop, LoopSeat(self._parts.scheduler, seat, instance, run))
        else:
            super().serve(seat, claim, instance)  # a claim is waited for
        instance.drain()

    def _settle(self, instance: RequestInstance) -> None:
        instance.wait_until_free()

    def _run(self, instance: RequestInstance, batch: list[Waiting]) -> None:
        """What waits besides goes with it where the model allows, each request a batch of its own."""
        parts = self._parts
        batches = [batch]
        if self._takes_ahead:
            ahead = parts.scheduler.take_ahead(instance.num_ahead)
            batches += [[waiting] for waiting in self._without_cancelled(ahead)]
        decoupled = parts.config.decoupled
        instance.begin(
            [RunningBatch(each, parts.layout, parts.endings, parts.statistics, decoupled=decoupled) for each in batches]
        )


def host_of(parts: ModelParts, backend: TensorBackend | RequestBackend) -> TensorHost | RequestHost:
    if isinstance(backend, RequestBackend):
        return RequestHost(parts, backend)
    return TensorHost(parts, backend)


def _as_load_error(config: ModelConfig, error: Exception) -> ServingError:
    return ServingError(Code.INTERNAL, f"model '{config.name}': {str(error) or type(error).__name__}")


def _wanted(requests: list[InferenceRequest]) -> list[str]:
    """The outputs somebody in a batch asked for; [] for all."""
    if any(not request.outputs for request in requests):
        return []
    return list({output.name: None for request in requests for output in request.outputs})
