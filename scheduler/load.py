"""From a config and a version folder to a serving tensor model."""

import asyncio
from functools import partial
from pathlib import Path

from backends.api.base import Placement, TensorBackend, TensorInstance
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.registry import open_backend
from scheduler.alarm import Alarm
from scheduler.instances import InstanceThread, placements
from scheduler.merge import BatchLayout
from scheduler.ragged import BATCH_INPUT_KINDS, SCATTER
from scheduler.rate_limit import Claim, RateLimiter
from scheduler.response_cache import ResponseCache
from scheduler.sequence_slots import SlotBackend, with_sequence_tensors
from scheduler.tensor_model import TensorModel
from scheduler.warmup import warm_up


async def load_tensor_model(
    config: ModelConfig,
    version: str,
    folder: Path,
    *,
    alarm: Alarm,
    cache: ResponseCache | None = None,
    limiter: RateLimiter | None = None,
) -> TensorModel:
    """Open the backend of `config` over `folder`, make and warm up every instance, and start to serve.

    `config` is completed by the backend; `model.config` is the whole one. `alarm` is shared by all models, so are
    `cache` (used where the config says so) and `limiter` (None: off). Raises ServingError with nothing left behind.
    """
    check_supported(config)
    backend = await asyncio.to_thread(open_backend, with_sequence_tensors(config), folder)
    return await start_tensor_model(
        backend, config, version, folder.parent / "warmup", alarm=alarm, cache=cache, limiter=limiter
    )


async def start_tensor_model(
    backend: TensorBackend,
    config: ModelConfig,
    version: str,
    warmup_folder: Path,
    *,
    alarm: Alarm,
    cache: ResponseCache | None = None,
    limiter: RateLimiter | None = None,
) -> TensorModel:
    """The same over an open backend, which is closed if this fails."""
    if config.sequence_batching is not None:
        backend = SlotBackend(backend, warmup_folder.parent / "initial_state")
    try:
        config = await asyncio.to_thread(backend.complete, config)
        check_supported(config)
        model = TensorModel(config, version, backend, alarm, cache if config.response_cache else None)
        await _start_instances(model, backend, warmup_folder, limiter)
    except BaseException:
        await asyncio.to_thread(backend.close)
        raise
    return model


def check_supported(config: ModelConfig) -> None:
    """Raises ServingError(UNSUPPORTED) for what tensor backends cannot do, INVALID for what makes no sense."""
    what = None
    if config.decoupled:
        what = f"backend '{config.backend}' gives one answer a request and cannot be decoupled"
    elif config.sequence_batching is not None and config.sequence_batching.iterative_sequence:
        what = f"backend '{config.backend}' never asks for a request again (iterative_sequence)"
    elif config.ensemble is not None:
        what = "this scheduler runs no ensembles"
    elif any(spec.is_shape_tensor for spec in (*config.inputs, *config.outputs)):
        what = f"backend '{config.backend}' has no shape tensors (is_shape_tensor)"
    elif any(spec.is_non_linear_format_io for spec in (*config.inputs, *config.outputs)):
        what = f"backend '{config.backend}' has no non-linear formats (is_non_linear_format_io)"
    if what is not None:
        raise ServingError(Code.UNSUPPORTED, f"model '{config.name}': {what}")
    for rule in config.batch_inputs:
        if rule.kind not in BATCH_INPUT_KINDS or len(rule.source_inputs) != 1:
            raise ServingError(
                Code.INVALID,
                f"model '{config.name}': batch input kind '{rule.kind}' expects 1 source input, "
                f"got {len(rule.source_inputs)}",
            )
    for output in config.batch_outputs:
        if output.kind != SCATTER or len(output.source_inputs) != 1:
            raise ServingError(
                Code.INVALID,
                f"model '{config.name}': batch output kind '{output.kind}' expects 1 source input, "
                f"got {len(output.source_inputs)}",
            )


async def _start_instances(
    model: TensorModel, backend: TensorBackend, warmup_folder: Path, limiter: RateLimiter | None
) -> None:
    config = model.config
    layout = BatchLayout(config)

    def make(placement: Placement) -> TensorInstance:
        instance = backend.instance(placement)
        try:
            warm_up(instance, config, layout, warmup_folder)
        except BaseException:
            instance.close()
            raise
        return instance

    threads: list[InstanceThread[TensorInstance]] = []
    claims: list[Claim] = []
    try:
        for group, placement in placements(config, backend.num_gpus):
            claim = limiter.claim(group, placement) if limiter is not None and group.resources else None
            if claim is not None:
                claims.append(claim)
            serve = model.wait_for_close if group.passive else partial(model.serve, claim)
            threads.append(InstanceThread(placement, partial(make, placement), serve))
        for outcome in await asyncio.gather(
            *(asyncio.wrap_future(thread.ready) for thread in threads), return_exceptions=True
        ):
            if isinstance(outcome, BaseException):
                raise _as_load_error(config, outcome)
    except BaseException:
        for thread in threads:
            thread.abandon()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        for claim in claims:
            claim.drop()
        raise
    model.start(threads, claims)


def _as_load_error(config: ModelConfig, error: BaseException) -> BaseException:
    if isinstance(error, ServingError) or not isinstance(error, Exception):
        return error
    return ServingError(Code.INTERNAL, f"model '{config.name}': {str(error) or type(error).__name__}")
