"""The versions of a model that one load brought up, and that are closed together."""

import asyncio
import logging
from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from backends.api.base import LiveModel, Resizable
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig, VersionPolicy
from model_repository.candidate import Candidate
from model_repository.checks import check_reported
from model_repository.layout import content
from model_repository.sources import ModelId

log = logging.getLogger(__name__)


class Loader(Protocol):
    """Makes a version of a model live: instances made and warmed up. `namespace` is its repository, with namespacing.

    Raises ServingError for a model that cannot be; it then has released what it took. Cancelled, likewise.
    """

    def __call__(
        self, config: ModelConfig, version: str, folder: Path, /, *, namespace: str = ""
    ) -> Awaitable[LiveModel]: ...


class LoadError(Exception):
    """Some versions of a candidate did not load, and the others were closed again: version -> error."""

    def __init__(self, errors: Mapping[str, ServingError]) -> None:
        super().__init__("; ".join(f"version {version}: {error.message}" for version, error in errors.items()))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Slots:
    """`loads` bounds how many versions load at once in the server. A load that fails is tried `retries` times more."""

    loads: Semaphore
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """Live versions, lowest first. Owns its models and its candidate's workspace until `close`.

    `steps` are the models that an ensemble needs.
    """

    candidate: Candidate
    models: Mapping[str, LiveModel]
    steps: tuple[ModelId, ...] = ()

    def without(self, kept: Mapping[str, LiveModel]) -> "Generation":
        """What is left to close when those of `kept` have another owner."""
        models = {version: model for version, model in self.models.items() if kept.get(version) is not model}
        return replace(self, models=models)

    async def close(self) -> None:
        """Close every version, side by side; return when their requests are answered. Call once."""
        await _close_all(self.models)
        await _discard(self.candidate)


def carried_over(old: Generation, new: Candidate) -> dict[str, LiveModel]:
    """The versions of `old` that go on serving as `new`, of which all but the instances is as it was."""
    if old.candidate.workspace is not None or new.workspace is not None:
        return {}
    if _essence(old.candidate.config) != _essence(new.config):
        return {}
    return {
        version: model
        for version, model in old.models.items()
        if version in new.versions
        and isinstance(model, Resizable)
        and content(old.candidate.snapshot, version) == content(new.snapshot, version)
    }


def _essence(config: ModelConfig) -> ModelConfig:
    return replace(config, instance_groups=(), version_policy=VersionPolicy())


async def read_whole(read: Callable[[], Candidate]) -> Candidate:
    """`read` in a thread. A cancel waits for the thread, and leaves no workspace behind."""
    reading = asyncio.ensure_future(asyncio.to_thread(read))
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        (outcome,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(outcome, Candidate):
            await _discard(outcome)
        raise


async def load_generation(
    candidate: Candidate,
    loader: Loader,
    slots: Slots,
    *,
    namespace: str = "",
    kept: Mapping[str, LiveModel] | None = None,
    steps: tuple[ModelId, ...] = (),
) -> Generation:
    """All versions of `candidate`, or none. Those of `kept` live already, and get the instances it asks for.

    Raises LoadError. Nothing is left open, nor after a cancel; `kept` is then as before.
    """
    kept = kept or {}
    tasks = {
        version: asyncio.ensure_future(_load_version(candidate.config, version, folder, loader, slots, namespace))
        for version, folder in candidate.versions.items()
        if version not in kept
    }
    try:
        if tasks:
            await asyncio.wait(tasks.values())
        errors = {
            version: error for version, task in tasks.items() if isinstance(error := task.exception(), ServingError)
        }
        if errors:
            raise LoadError(errors)
        await _resize(kept, candidate.config.instance_groups)
    except BaseException:
        for task in tasks.values():
            task.cancel()
        if tasks:
            await asyncio.wait(tasks.values())
        await _undo(candidate, tasks)
        raise
    live = {**kept, **{version: task.result() for version, task in tasks.items()}}
    return Generation(candidate, {version: live[version] for version in candidate.versions}, steps)


async def _resize(models: Mapping[str, LiveModel], groups: tuple[InstanceGroup, ...]) -> None:
    """Raises LoadError, with the instances as before."""
    before = {version: model.config.instance_groups for version, model in models.items()}
    resizable = {version: model for version, model in models.items() if isinstance(model, Resizable)}
    changes = (model.set_instances(groups) for model in resizable.values())
    outcomes = dict(zip(resizable, await asyncio.gather(*changes, return_exceptions=True), strict=True))
    failed = {version: outcome for version, outcome in outcomes.items() if outcome is not None}
    if not failed:
        return
    for version in resizable.keys() - failed.keys():
        await resizable[version].set_instances(before[version])
    errors = {version: error for version, error in failed.items() if isinstance(error, ServingError)}
    raise LoadError(errors) if errors else next(iter(failed.values()))


async def _load_version(
    config: ModelConfig, version: str, folder: Path, loader: Loader, slots: Slots, namespace: str
) -> LiveModel:
    """One version, its reported config checked. Raises ServingError alone, or is cancelled."""
    async with slots.loads:
        for attempt in range(slots.retries + 1):
            try:
                return await _try_to_load(config, version, folder, loader, namespace)
            except ServingError as error:
                if attempt == slots.retries:
                    raise
                log.warning(
                    "model '%s' version %s failed to load, try %d of %d: %s",
                    config.name,
                    version,
                    attempt + 1,
                    slots.retries + 1,
                    error.message,
                )
        raise AssertionError("at least one try")


async def _try_to_load(config: ModelConfig, version: str, folder: Path, loader: Loader, namespace: str) -> LiveModel:
    try:
        model = await loader(config, version, folder, namespace=namespace)
    except ServingError:
        raise
    except Exception as error:
        log.exception("the loader of model '%s' version %s raised", config.name, version)
        raise ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}") from error
    try:
        check_reported(config, model.config)
    except ServingError:
        await _close_all({version: model})
        raise
    return model


async def _undo(candidate: Candidate, tasks: "Mapping[str, asyncio.Future[LiveModel]]") -> None:
    loaded = {
        version: task.result() for version, task in tasks.items() if not task.cancelled() and task.exception() is None
    }
    await _close_all(loaded)
    await _discard(candidate)


async def _close_all(models: Mapping[str, LiveModel]) -> None:
    results = await asyncio.gather(*(model.close() for model in models.values()), return_exceptions=True)
    for version, result in zip(models, results, strict=True):
        if isinstance(result, Exception):
            log.error("closing version %s failed", version, exc_info=result)


async def _discard(candidate: Candidate) -> None:
    if candidate.workspace is not None:
        await asyncio.to_thread(candidate.workspace.cleanup)
