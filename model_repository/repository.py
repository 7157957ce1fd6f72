"""Which models exist and which answer: find, load, unload, index."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from backends.api.base import LiveModel, check_ready
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from model_repository import layout
from model_repository.candidate import Override, from_folder, from_override
from model_repository.generation import Generation, Loader, LoadError, load_generation, read_whole
from model_repository.memory import trim
from model_repository.options import RepositoryOptions
from model_repository.record import Record, step_models
from model_repository.refusals import not_available
from model_repository.states import IndexEntry, OnChange, State, log_change, reason_of
from model_repository.table import VersionTable
from model_repository.texts import (
    circular,
    control_not_allowed,
    load_failed,
    not_unique,
    step_failed,
    stopping,
    unknown_to_load,
    unreadable,
    versions_failed,
)

log = logging.getLogger(__name__)
ALL = "*"


class Repository:
    """The one owner of the version table and of the models in it.

    Reading may be done from any thread, all else on the event loop. Loads and unloads of one model queue,
    those of different models run side by side. A load that has begun goes on if its caller leaves.
    """

    def __init__(self, options: RepositoryOptions, loader: Loader, on_change: OnChange | None = None) -> None:
        self._options = options
        self._loader = loader
        self._on_change = on_change or log_change
        self._slots = asyncio.Semaphore(options.load_threads)
        self._records: dict[str, Record] = {}
        self._table = VersionTable()
        self._start_up: frozenset[str] | None = None  # None until `start` has tried them all
        self._awaiting: dict[str, tuple[str, ...]] = {}  # ensembles that load -> the models they wait for
        self._tasks: set[asyncio.Task[None]] = set()  # loads, and the poller: what `close` cancels
        self._closing = False

    # Reading

    def find(self, name: str, version: str = "") -> LiveModel:
        """The live model for a request; "" is the newest version.

        Call `infer` on it without awaiting in between: a model that was swapped out refuses new work.
        Raises ServingError: NOT_FOUND for no such model or version, UNAVAILABLE for one that is not ready.
        """
        model = self._table.get(name, version)
        if model is not None:
            return model
        if self._closing:
            raise stopping()
        if version.isdecimal() and version != str(int(version)):
            return self.find(name, str(int(version)))
        raise not_available(self._records.get(name), name, version)

    def find_live(self, name: str, version: str = "") -> LiveModel:
        """As `find`, and while the server stops too: for what an accepted request still needs."""
        record = self._records.get(name) if self._closing else None
        models = record.generation.models if record is not None and record.generation is not None else {}
        model = models.get(version or max(models, key=int, default=""))
        return self.find(name, version) if model is None else model

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a request would be taken now: a live model whose engine restarts is not ready for the moment."""
        model = self._table.get(name, version)
        return model is not None and bool(getattr(model, "is_ready", True))

    async def check_ready(self, name: str, version: str = "") -> bool:
        """The same, and the model is asked too where it has a word of its own. On the event loop."""
        model = self._table.get(name, version)
        return model is not None and await check_ready(model)

    def versions(self, name: str) -> list[str]:
        """The versions that answer, lowest first."""
        record = self._records.get(name)
        return record.live_versions() if record else []

    def ready_models(self) -> list[LiveModel]:
        """The newest live version of every model, by name."""
        return self._table.newest()

    def all_ready(self) -> bool:
        """Whether the server may call itself ready: start is over and, if strict, what it loads at start answers.

        A model unloaded on purpose does not count, nor one that was loaded later by request.
        """
        if self._closing or self._start_up is None:
            return False
        records = [self._records.get(name) for name in self._start_up]
        return not self._options.strict_readiness or all(
            record is not None and (record.is_unloaded or (record.is_serving and self.is_ready(record.name)))
            for record in records
        )

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Every model on disk or ever loaded, by name and version. Reads the disk unless `ready_only`.

        Raises UNAVAILABLE for a repository that cannot be read.
        """
        entries = [
            IndexEntry(record.name, version, state.state.value, state.reason)
            for record in list(self._records.values())
            for version, state in record.states.items()
        ]
        if ready_only:
            entries = [entry for entry in entries if entry.state == State.READY.value]
        else:
            known = {entry.name for entry in entries}
            entries += [IndexEntry(name) for name in layout.scan(self._options.paths) if name not in known]
        return sorted(entries, key=lambda entry: (entry.name, len(entry.version), entry.version))

    # Life

    async def start(self) -> dict[str, ServingError]:
        """Load what the mode says, side by side; returns what failed: model -> error.

        Raises ServingError with exit_on_error if any failed, and for a repository that cannot be read.
        Close the repository in either case.
        """
        names = await self._start_up_names()
        results = await asyncio.gather(*(self._in_task(self._load(name)) for name in names), return_exceptions=True)
        failed: dict[str, ServingError] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, ServingError):
                failed[name] = result
            elif result is not None:
                raise result
        if failed and self._options.exit_on_error:
            lines = "".join(f"\n  {name}: {error.message.rstrip()}" for name, error in failed.items())
            raise ServingError(Code.UNAVAILABLE, f"{len(failed)} of {len(names)} models failed to load:{lines}")
        self._start_up = frozenset(names)
        if self._options.mode == "poll":
            self._spawn(self._poll_forever())
        return failed

    async def load(
        self, name: str, config_override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model and return once it answers; requests taken by its old versions are answered.

        A loaded model that has not changed on disk stays as it is. `config_override` (Triton's JSON) stands in for
        the config on disk for this load; `files` (`file:1/model.onnx` -> content), which need it, for the files.
        Raises ServingError; what answered before goes on answering.
        """
        self._check_control_allowed()
        if files and config_override is None:
            raise ServingError(Code.INVALID, f"load of model '{name}' with files must give the model's config too")
        override = None if config_override is None else Override(config_override, files or {})
        await self._in_task(self._load(name, override))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model down and return once its requests are answered and its memory is given back.

        It refuses new requests at once, whether or not the caller stays. Nothing for an unknown model.
        `unload_dependents`: the models of an ensemble's steps go too, those aside that another ensemble needs.
        """
        self._check_control_allowed()
        record = self._records.get(name)
        if record is None:
            log.info("unload of model '%s', which was never loaded: nothing to do", name)
            return
        steps = record.step_models
        await self._take_down(record)
        if record.drains:
            await asyncio.wait(record.drains)
        needed = {name for other in self._records.values() for name in other.step_models}
        for step in steps if unload_dependents else ():
            if step not in needed:
                await self.unload(step, unload_dependents=True)

    async def poll(self) -> None:
        """One look at the disk: load what is new or changed, take down what is gone. Failures stay in the index."""
        seen = await asyncio.to_thread(self._look_at_all)
        for record in list(self._records.values()):
            if record.name not in seen and not record.is_unloaded:
                await self._take_down(record)
        changed = [name for name in seen if name not in self._records or self._records[name].seen != seen[name]]
        loads = (self._in_task(self._load(name)) for name in changed)
        for result in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, ServingError):
                raise result

    async def close(self) -> None:
        """Refuse new work, cancel loads, and return when every accepted request is answered and all is closed."""
        self._closing = True
        self._table.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = list(self._records.values())
        while left:
            # an ensemble before the models of its steps: its requests still need them
            needed = {name for record in left for name in record.step_models}
            free = [record for record in left if record.name not in needed] or left
            for record in free:
                await self._take_down(record)
            await asyncio.gather(*(drain for record in free for drain in record.drains))
            left = [record for record in left if record not in free]

    # Acting

    async def _load(self, name: str, override: Override | None = None) -> None:
        layout.check_name(name)
        if name not in self._records and not (override and override.files):
            await asyncio.to_thread(self._check_on_disk, name)  # so that no record is made for a name nobody has
        record = self._records.setdefault(name, Record(name, self._on_change))
        async with record.lock:
            if self._closing:
                raise stopping()
            try:
                await self._bring_up(record, override)
            except LoadError as error:
                record.fail_load({version: reason_of(each) for version, each in error.errors.items()})
                raise versions_failed(name, error.errors) from None
            except (ServingError, OSError) as failure:
                cause = unreadable(name, failure) if isinstance(failure, OSError) else failure
                record.fail_load({"": reason_of(cause)})
                raise load_failed(name, cause) from None
            except asyncio.CancelledError:
                record.fail_load({"": reason_of(stopping())})
                raise

    async def _bring_up(self, record: Record, override: Override | None) -> None:
        """The steps of a load, under the record's lock. Up to the swap, nothing that answers is touched."""
        name, options = record.name, self._options
        folders = await asyncio.to_thread(layout.folders_of, options.paths, name)
        seen = await asyncio.to_thread(layout.look, folders)
        if override is None:
            record.seen = seen
            if record.generation is not None and record.generation.candidate.snapshot == seen:
                record.keep()
                return
        if len(folders) > 1:
            raise not_unique(name, folders, namespacing=options.namespacing)
        folder = folders[0] if folders else None
        if override is not None:
            candidate = await read_whole(partial(from_override, name, folder, override, options))
        elif folder is not None:
            candidate = await read_whole(partial(from_folder, folder, options, seen))
        else:
            raise unknown_to_load(name)
        record.begin_load(list(candidate.versions))
        await self._load_steps(candidate.config)
        generation = await load_generation(candidate, self._loader, self._slots)
        old = record.end_load(generation)
        self._table.swap(name, generation.models)
        if old is not None:
            self._drain(record, old)

    async def _load_steps(self, config: ModelConfig) -> None:
        """Load the models that an ensemble needs and that do not answer yet, side by side.

        Raises ServingError(INVALID) for one that cannot be had, and for ensembles that need each other.
        """
        steps = step_models(config)
        self._awaiting[config.name] = steps
        try:
            self._check_circle(config.name)
            results = await asyncio.gather(*map(self._load_step, steps), return_exceptions=True)
        finally:
            del self._awaiting[config.name]
        for step, result in zip(steps, results, strict=True):
            if isinstance(result, ServingError):
                raise step_failed(config.name, step, result)
            if result is not None:
                raise result

    async def _load_step(self, name: str) -> None:
        record = self._records.get(name)
        if record is not None and record.lock.locked():
            async with record.lock:
                pass  # somebody else is about to load it; once is enough, well or not
            if not record.is_serving and record.states and not record.is_unloaded:
                raise ServingError(Code.INVALID, "; ".join({state.reason for state in record.states.values()}))
        if self._table.get(name, "") is None:
            await self._load(name)

    def _check_circle(self, name: str) -> None:
        """Whoever completes a circle of waiting ensembles is refused, so that none waits for ever."""
        waiting = [(name, step) for step in self._awaiting[name]]
        seen = set[str]()
        while waiting:
            above, step = waiting.pop()
            if step == name:
                raise circular(name, above)
            if step not in seen:
                seen.add(step)
                waiting += [(step, below) for below in self._awaiting.get(step, ())]

    async def _take_down(self, record: Record) -> None:
        """Nothing of the model answers any more; what did drains in `record.drains`."""
        async with record.lock:
            old = record.begin_unload()
            self._table.swap(record.name, {})
            if old is not None:
                self._drain(record, old)

    def _drain(self, record: Record, old: Generation) -> None:
        async def drain() -> None:
            await old.close()
            record.end_drain(list(old.models))
            await asyncio.to_thread(trim)

        task = asyncio.create_task(drain())
        record.drains.add(task)
        task.add_done_callback(record.drains.discard)

    async def _start_up_names(self) -> list[str]:
        options = self._options
        if options.mode == "explicit" and options.load_models != (ALL,):
            return list(dict.fromkeys(options.load_models))
        return list(await asyncio.to_thread(layout.scan, options.paths))

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._options.poll_seconds)
            try:
                await self.poll()
            except Exception:
                log.exception("polling the model repository failed, next try in %g s", self._options.poll_seconds)

    def _look_at_all(self) -> dict[str, layout.Snapshot]:
        return {name: layout.look(folders) for name, folders in layout.scan(self._options.paths).items()}

    async def _in_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end even if the caller leaves. Raises UNAVAILABLE if `close` stops it."""
        task = self._spawn(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise stopping() from None
            raise

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen here too, should the caller have left

    def _check_on_disk(self, name: str) -> None:
        if not layout.folders_of(self._options.paths, name):
            raise unknown_to_load(name)

    def _check_control_allowed(self) -> None:
        if self._closing:
            raise stopping()
        if self._options.mode != "explicit":
            raise control_not_allowed()
