"""From a config and a version folder to a serving tensor model."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from backends.api.base import RequestBackend, TensorBackend
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.registry import open_backend
from backends.parameters import ignored_parameters
from backends.python.backend import PythonBackend
from scheduler.alarm import Alarm
from scheduler.python_model import PythonModel
from scheduler.ragged import BATCH_INPUT_KINDS, SCATTER
from scheduler.rate_limit import RateLimiter
from scheduler.response_cache import ResponseCache
from scheduler.sequence_slots import SlotBackend, with_sequence_tensors
from scheduler.tensor_model import TensorModel
from scheduler.warmup import check_samples

log = logging.getLogger(__name__)


async def load_tensor_model(
    config: ModelConfig,
    version: str,
    folder: Path,
    *,
    alarm: Alarm,
    cache: ResponseCache | None = None,
    limiter: RateLimiter | None = None,
    settings: Mapping[str, str] | None = None,
) -> TensorModel:
    """Open the backend of `config` over `folder`, make and warm up every instance, and start to serve.

    `config` is completed by the backend; `model.config` is the whole one. `alarm` is shared by all models, so are
    `cache` (used where the config says so) and `limiter` (None: off). `settings` are the server's for the backend. Raises ServingError with nothing left behind.
    """
    check_supported(config)
    for text in ignored_parameters(config):
        log.warning("model '%s': %s", config.name, text)
    backend = await asyncio.to_thread(open_backend, with_sequence_tensors(config), folder, settings)
    return await start_tensor_model(
        backend, config, version, folder.parent / "warmup", alarm=alarm, cache=cache, limiter=limiter
    )


async def start_tensor_model(
    backend: TensorBackend | RequestBackend,
    config: ModelConfig,
    version: str,
    warmup_folder: Path,
    *,
    alarm: Alarm,
    cache: ResponseCache | None = None,
    limiter: RateLimiter | None = None,
) -> TensorModel:
    """The same over an open backend, which is closed if this fails."""
    if not isinstance(backend, RequestBackend):
        backend = _with_slots(backend, config, warmup_folder.parent)
    try:
        config = await asyncio.to_thread(backend.complete, config)
        check_samples(config)
        if not isinstance(backend, RequestBackend):
            check_supported(config)
        kind = PythonModel if isinstance(backend, PythonBackend) else TensorModel
        model = kind(config, version, backend, warmup_folder, alarm=alarm, cache=cache, limiter=limiter)
        await model.set_instances(config.instance_groups)
    except BaseException:
        if isinstance(backend, RequestBackend):
            backend.stopping()
        await asyncio.shield(asyncio.to_thread(backend.close))
        raise
    return model


def check_tensor_model(config: ModelConfig, folder: Path) -> None:
    """What can be said of a model and its version's folder with its file open, before any instance is made.

    Raises ServingError as a load would, but for what this machine lacks: a library, a GPU.
    """
    check_supported(config)
    try:
        backend = open_backend(with_sequence_tensors(config), folder)
        try:
            completed = _with_slots(backend, config, folder.parent).complete(config)
        finally:
            backend.close()
    except ServingError as error:
        if error.code is Code.UNAVAILABLE:
            return
        raise
    check_supported(completed)
    check_samples(completed)


def _with_slots(backend: TensorBackend, config: ModelConfig, model_folder: Path) -> TensorBackend:
    return backend if config.sequence_batching is None else SlotBackend(backend, model_folder / "initial_state")


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
