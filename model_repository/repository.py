"""Which models exist and which answer: find, load, unload, index."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from backends.api.base import LiveModel, check_ready, is_ready
from backends.api.errors import Code, ServingError
from model_repository import layout
from model_repository.candidate import Override
from model_repository.generation import Loader
from model_repository.lifecycle import Lifecycle, needed_by
from model_repository.options import RepositoryOptions
from model_repository.record import Record
from model_repository.refusals import not_available
from model_repository.sources import ModelId, Sources, choose
from model_repository.states import IndexEntry, OnChange, State, log_change
from model_repository.table import VersionTable
from model_repository.tasks import Tasks
from model_repository.texts import ambiguous, control_not_allowed, stopping, unknown_to_load

log = logging.getLogger(__name__)
ALL = "*"


class Repository:
    """The models of a server, by name. Owns the table that requests are answered from.

    Reading may be done from any thread, all else on the event loop. Loads and unloads of one model queue,
    those of different models run side by side. A load that has begun goes on if its caller leaves.
    With namespacing a name may stand for several models: loads and unloads then mean all of them, and a request that
    cannot tell them apart is refused.
    """

    def __init__(self, options: RepositoryOptions, loader: Loader, on_change: OnChange | None = None) -> None:
        self._options = options
        self._sources = Sources(options.paths, options.namespacing)
        self._table = VersionTable()
        self._lifecycle = Lifecycle(options, self._sources, loader, self._table, on_change or log_change)
        self._records = self._lifecycle.records
        self._start_up: frozenset[ModelId] | None = None  # None until `start` has tried them all
        self._tasks = Tasks()  # loads, unloads that nobody waits for, and the poller: what `close` cancels

    # Reading

    def find(self, name: str, version: str = "") -> LiveModel:
        """The live model for a request; "" is the newest version.

        Call `infer` on it without awaiting in between: a model that was swapped out refuses new work.
        Raises ServingError: NOT_FOUND for no such model or version, UNAVAILABLE for one that is not ready, INVALID for
        a name that several models have.
        """
        model = self._table.get(name, version)
        if model is not None:
            return model
        if self._lifecycle.is_closing:
            raise stopping()
        if version.startswith("0") and version.strip("0"):
            return self.find(name, version.lstrip("0"))
        num_live = len(self._table.ids(name))
        if num_live > 1:
            raise ambiguous(name, num_live)
        raise not_available(self._record(name), name, version)

    def find_step(self, name: str, version: str = "", *, home: str = "", namespace: str = "") -> LiveModel:
        """What an ensemble of the repository `home` means by a step's model, as `choose` says; also while the server stops."""
        model = self._table.get_of(ModelId(namespace or home, name), version)
        if model is not None:
            return model
        record = self._records.get(choose(name, self._known(name), home=home, namespace=namespace))
        models = record.generation.models if record is not None and record.generation is not None else {}
        model = models.get(version or max(models, key=int, default=""))
        if model is not None:
            return model
        if self._lifecycle.is_closing:
            raise stopping()
        raise not_available(record, name, version)

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether a request would be taken now: a live model whose engine restarts is not ready for the moment."""
        model = self._table.get(name, version)
        return model is not None and is_ready(model)

    async def check_ready(self, name: str, version: str = "") -> bool:
        """The same, and the model is asked too where it has a word of its own. On the event loop."""
        model = self._table.get(name, version)
        return model is not None and await check_ready(model)

    def versions(self, name: str) -> list[str]:
        """The versions that answer, lowest first."""
        record = self._record(name)
        return record.live_versions() if record else []

    def ready_models(self) -> list[LiveModel]:
        """The newest live version of every model, by name."""
        return self._table.newest()

    def live_models(self) -> list[LiveModel]:
        """Every live version of every model, by name and version."""
        return self._table.every()

    def all_ready(self) -> bool:
        """Whether the server may call itself ready: start is over and, if strict, what it loads at start answers.

        A model unloaded on purpose does not count, nor one that was loaded later by request.
        """
        if self._lifecycle.is_closing or self._start_up is None:
            return False
        records = [self._records.get(model) for model in self._start_up]
        return not self._options.strict_readiness or all(
            record is not None and (record.is_unloaded or self._is_ready(record.model)) for record in records
        )

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Every model on disk or ever loaded, by name and version. Reads the disk unless `ready_only`.

        Raises UNAVAILABLE for a repository that cannot be read.
        """
        records = list(self._records.values())
        entries = [
            IndexEntry(record.name, version, state.state.value, state.reason)
            for record in records
            for version, state in record.states.items()
        ]
        if ready_only:
            entries = [entry for entry in entries if entry.state == State.READY.value]
        else:
            known = {record.model for record in records if record.states}
            entries += [IndexEntry(model.name) for model in self._sources.scan() if model not in known]
        return sorted(entries, key=lambda entry: (entry.name, len(entry.version), entry.version))

    # Life

    async def start(self) -> dict[str, ServingError]:
        """Load what the mode says, side by side; returns what failed: model -> error.

        Raises ServingError with exit_on_error if any failed, and for a repository that cannot be read.
        Close the repository in either case.
        """
        models = await asyncio.to_thread(self._start_up_models)
        loads = (self._tasks.run(self._lifecycle.load(model)) for model in models)
        results = await asyncio.gather(*loads, return_exceptions=True)
        failed: dict[str, ServingError] = {}
        for model, result in zip(models, results, strict=True):
            if isinstance(result, ServingError):
                failed[model.label] = result
            elif result is not None:
                raise result
        if failed and self._options.exit_on_error:
            lines = "".join(f"\n  {name}: {error.message.rstrip()}" for name, error in failed.items())
            raise ServingError(Code.UNAVAILABLE, f"{len(failed)} of {len(models)} models failed to load:{lines}")
        self._start_up = frozenset(models)
        if self._options.mode == "poll":
            self._tasks.spawn(self._poll_forever())
        return failed

    async def load(
        self, name: str, config_override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model and return once it answers; requests taken by its old versions are answered.

        A loaded model that has not changed on disk stays as it is; one whose instance groups or version policy alone
        have changed goes on, with more or fewer instances and versions. `config_override` (Triton's JSON) stands in for
        the config on disk for this load; `files` (`file:1/model.onnx` -> content), which need it, for the files.
        Raises ServingError; what answered before goes on answering.
        """
        self._check_control_allowed()
        layout.check_name(name)
        if files and config_override is None:
            raise ServingError(Code.INVALID, f"load of model '{name}' with files must give the model's config too")
        override = None if config_override is None else Override(config_override, files or {})
        models = await asyncio.to_thread(self._sources.ids, name) or self._known(name)
        if override is not None and len(models) > 1:
            raise ambiguous(name, len(models))
        if not models and not files:
            raise unknown_to_load(name)
        for model in models or [ModelId("", name)]:
            await self._tasks.run(self._lifecycle.load(model, override))

    async def unload(self, name: str, unload_dependents: bool = False, *, waits: bool = True) -> None:
        """Take a model down and return once its requests are answered and its memory is given back.

        It refuses new requests at once, whether or not the caller stays. Nothing for an unknown model.
        `unload_dependents`: the models of an ensemble's steps go too, those aside that another ensemble needs.
        `waits` False: return when it takes nothing more, for a caller whom its requests may be waiting for.
        """
        self._check_control_allowed()
        known = self._known(name)
        if not known:
            log.info("unload of model '%s', which was never loaded: nothing to do", name)
        for model in known:
            await self._unload(self._records[model], unload_dependents, waits=waits)

    async def poll(self) -> None:
        """One look at the disk: load what is new or changed, take down what is gone. Failures stay in the index."""
        seen = await asyncio.to_thread(self._sources.look)
        for record in list(self._records.values()):
            if record.model not in seen and not record.is_unloaded:
                await self._lifecycle.take_down(record)
        changed = [model for model in seen if model not in self._records or self._records[model].seen != seen[model]]
        loads = (self._tasks.run(self._lifecycle.load(model)) for model in changed)
        for result in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, ServingError):
                raise result

    async def close(self) -> None:
        """Refuse new work, cancel loads, and return when every accepted request is answered and all is closed."""
        self._lifecycle.is_closing = True
        self._table.clear()
        await self._tasks.stop()
        await self._lifecycle.take_all_down()

    async def _unload(self, record: Record, unload_dependents: bool, *, waits: bool = True) -> None:
        steps = record.steps if unload_dependents else ()
        await self._lifecycle.take_down(record)
        rest = self._finish_unload(record, steps)
        if waits:
            await rest
        else:
            self._tasks.spawn(rest)

    async def _finish_unload(self, record: Record, steps: Sequence[ModelId]) -> None:
        """Its requests are answered first; then go those of `steps` that nothing else needs."""
        if record.drains:
            await asyncio.wait(record.drains)
        needed = needed_by(self._records.values())
        for step in steps:
            if step not in needed and step in self._records:
                await self._unload(self._records[step], unload_dependents=True)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(self._options.poll_seconds)
            try:
                await self.poll()
            except Exception:
                log.exception("polling the model repository failed, next try in %g s", self._options.poll_seconds)

    def _start_up_models(self) -> list[ModelId]:
        options = self._options
        if options.mode == "explicit" and options.load_models != (ALL,):
            return [
                model
                for name in dict.fromkeys(options.load_models)
                for model in self._sources.ids(name) or [ModelId("", name)]
            ]
        return list(self._sources.scan())

    def _known(self, name: str) -> list[ModelId]:
        """The models of this name that were ever loaded, without those that were taken down if others are there."""
        records = [record for record in list(self._records.values()) if record.name == name]
        present = [record for record in records if not record.is_unloaded]
        return [record.model for record in present or records]

    def _record(self, name: str) -> Record | None:
        """The record of this name: where there are several, that of the one that answers."""
        records = [self._records[model] for model in self._known(name)]
        return next((record for record in records if record.is_serving), next(iter(records), None))

    def _is_ready(self, model_id: ModelId) -> bool:
        model = self._table.get_of(model_id, "")
        return model is not None and is_ready(model)

    def _check_control_allowed(self) -> None:
        if self._lifecycle.is_closing:
            raise stopping()
        if self._options.mode != "explicit":
            raise control_not_allowed()
