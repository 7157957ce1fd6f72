"""How one model comes up and goes down: read, loaded with the models it needs, swapped in, drained."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from model_repository import layout
from model_repository.candidate import Override, from_folder, from_override
from model_repository.generation import (
    Generation,
    Loader,
    LoadError,
    Slots,
    carried_over,
    load_generation,
    read_whole,
)
from model_repository.memory import trim
from model_repository.options import RepositoryOptions
from model_repository.record import Record
from model_repository.sources import ModelId, Sources, choose
from model_repository.states import OnChange, reason_of
from model_repository.table import VersionTable
from model_repository.texts import (
    circular,
    load_failed,
    not_unique,
    step_failed,
    stopping,
    unknown_to_load,
    unreadable,
    versions_failed,
)

log = logging.getLogger(__name__)


class Lifecycle:
    """The one that changes records and table, on the event loop. Loads and unloads of one model queue."""

    def __init__(
        self, options: RepositoryOptions, sources: Sources, loader: Loader, table: VersionTable, on_change: OnChange
    ) -> None:
        self.records: dict[ModelId, Record] = {}
        self._options = options
        self._sources = sources
        self._loader = loader
        self._table = table
        self._on_change = on_change
        self._slots = Slots(asyncio.Semaphore(options.load_threads), options.load_retries)
        self._awaiting: dict[ModelId, tuple[ModelId, ...]] = {}  # ensembles that load -> the models they wait for
        self.is_closing = False

    async def load(self, model: ModelId, override: Override | None = None) -> None:
        """Raises ServingError; what answered before goes on answering."""
        name = model.name
        layout.check_name(name)
        if model not in self.records and not (override and override.files):
            await asyncio.to_thread(self._check_on_disk, model)  # so that no record is made for a name nobody has
        record = self.records.setdefault(model, Record(model, self._on_change))
        async with record.lock:
            if self.is_closing:
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

    async def take_down(self, record: Record) -> None:
        """Nothing of the model answers any more; what did drains in `record.drains`."""
        async with record.lock:
            old = record.begin_unload()
            self._table.swap(record.model, {})
            if old is not None:
                self._drain(record, old)

    async def take_all_down(self) -> None:
        """An ensemble before the models of its steps: its requests still need them. Returns when all is closed."""
        left = list(self.records.values())
        while left:
            needed = needed_by(left)
            free = [record for record in left if record.model not in needed] or left
            for record in free:
                await self.take_down(record)
            await asyncio.gather(*(drain for record in free for drain in record.drains))
            left = [record for record in left if record not in free]

    async def _bring_up(self, record: Record, override: Override | None) -> None:
        """The steps of a load, under the record's lock. Up to the swap, nothing that answers is touched."""
        name, options = record.name, self._options
        folders = await asyncio.to_thread(self._sources.folders, record.model)
        seen = await asyncio.to_thread(layout.look, folders)
        live = record.generation
        if override is None:
            record.seen = seen
            if live is not None and live.candidate.snapshot == seen and not live.candidate.is_override:
                record.keep()
                return
        if len(folders) > 1:
            raise not_unique(name, folders)
        folder = folders[0] if folders else None
        if override is not None:
            candidate = await read_whole(partial(from_override, name, folder, override, options, seen))
        elif folder is not None:
            candidate = await read_whole(partial(from_folder, folder, options, seen))
        else:
            raise unknown_to_load(name)
        record.begin_load(list(candidate.versions))
        steps = await self._load_steps(record.model, candidate.config)
        kept = carried_over(live, candidate) if live else {}
        namespace = record.model.namespace
        generation = await load_generation(
            candidate, self._loader, self._slots, namespace=namespace, kept=kept, steps=steps
        )
        if kept:
            log.info("model '%s': version(s) %s go on with the new configuration", name, ", ".join(kept))
        old = record.end_load(generation)
        self._table.swap(record.model, generation.models)
        if old is not None:
            self._drain(record, old)

    async def _load_steps(self, model: ModelId, config: ModelConfig) -> tuple[ModelId, ...]:
        """Load the models that an ensemble needs and that do not answer yet, side by side; all it needs.

        Raises ServingError(INVALID) for one that cannot be had, and for ensembles that need each other.
        """
        steps = await asyncio.to_thread(self._steps, model, config)
        self._awaiting[model] = steps
        try:
            self._check_circle(model)
            results = await asyncio.gather(*map(self._load_step, steps), return_exceptions=True)
        finally:
            del self._awaiting[model]
        for step, result in zip(steps, results, strict=True):
            if isinstance(result, ServingError):
                raise step_failed(config.name, step.name, result)
            if result is not None:
                raise result
        return steps

    def _steps(self, model: ModelId, config: ModelConfig) -> tuple[ModelId, ...]:
        found: dict[ModelId, None] = {}
        for step in config.ensemble.steps if config.ensemble else ():
            known = [*self._sources.ids(step.model_name), *self._table.ids(step.model_name)]
            chosen = choose(step.model_name, dict.fromkeys(known), home=model.namespace, namespace=step.model_namespace)
            found[chosen] = None
        return tuple(found)

    async def _load_step(self, step: ModelId) -> None:
        record = self.records.get(step)
        if record is not None and record.lock.locked():
            async with record.lock:
                pass  # somebody else is about to load it; once is enough, well or not
            if not record.is_serving and record.states and not record.is_unloaded:
                raise ServingError(Code.INVALID, "; ".join({state.reason for state in record.states.values()}))
        if self._table.get_of(step, "") is None:
            await self.load(step)

    def _check_circle(self, model: ModelId) -> None:
        """Whoever completes a circle of waiting ensembles is refused, so that none waits for ever."""
        waiting = [(model, step) for step in self._awaiting[model]]
        seen = set[ModelId]()
        while waiting:
            above, step = waiting.pop()
            if step == model:
                raise circular(model.name, above.name)
            if step not in seen:
                seen.add(step)
                waiting += [(step, below) for below in self._awaiting.get(step, ())]

    def _drain(self, record: Record, old: Generation) -> None:
        async def drain() -> None:
            await old.close()
            record.end_drain(list(old.models))
            await asyncio.to_thread(trim)

        task = asyncio.create_task(drain())
        record.drains.add(task)
        task.add_done_callback(record.drains.discard)

    def _check_on_disk(self, model: ModelId) -> None:
        if not self._sources.folders(model):
            raise unknown_to_load(model.name)


def needed_by(records: Iterable[Record]) -> set[ModelId]:
    """The models that serving ensembles among `records` need."""
    return {step for record in records for step in record.steps}
