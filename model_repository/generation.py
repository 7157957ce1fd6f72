"""The versions of a model that one load brought up, and that are closed together."""

import asyncio
import logging
from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from model_repository.candidate import Candidate
from model_repository.checks import check_reported

log = logging.getLogger(__name__)


class Loader(Protocol):
    """Makes a version of a model live: instances made and warmed up.

    Raises ServingError for a model that cannot be; it then has released what it took. Cancelled, likewise.
    """

    def __call__(self, config: ModelConfig, version: str, folder: Path, /) -> Awaitable[LiveModel]: ...


class LoadError(Exception):
    """Some versions of a candidate did not load, and the others were closed again: version -> error."""

    def __init__(self, errors: Mapping[str, ServingError]) -> None:
        super().__init__("; ".join(f"version {version}: {error.message}" for version, error in errors.items()))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Generation:
    """Live versions, lowest first. Owns its models and its candidate's workspace until `close`."""

    candidate: Candidate
    models: Mapping[str, LiveModel]

    async def close(self) -> None:
        """Close every version, side by side; return when their requests are answered. Call once."""
        await _close_all(self.models)
        await _discard(self.candidate)


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


async def load_generation(candidate: Candidate, loader: Loader, slots: Semaphore) -> Generation:
    """All versions of `candidate`, or none. `slots` bounds how many load at once in the server.

    Raises LoadError. Nothing is left open, nor after a cancel.
    """
    tasks = {
        version: asyncio.ensure_future(_load_version(candidate.config, version, folder, loader, slots))
        for version, folder in candidate.versions.items()
    }
    try:
        await asyncio.wait(tasks.values())
    except asyncio.CancelledError:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        await _undo(candidate, tasks)
        raise
    errors = {version: error for version, task in tasks.items() if isinstance(error := task.exception(), ServingError)}
    if errors:
        await _undo(candidate, tasks)
        raise LoadError(errors)
    return Generation(candidate, {version: task.result() for version, task in tasks.items()})


async def _load_version(config: ModelConfig, version: str, folder: Path, loader: Loader, slots: Semaphore) -> LiveModel:
    """One version, its reported config checked. Raises ServingError alone, or is cancelled."""
    async with slots:
        try:
            model = await loader(config, version, folder)
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
