"""What the repository keeps of one model: its live versions, their states, and what was last seen on disk."""

import asyncio
from dataclasses import dataclass, field

from model_repository.generation import Generation
from model_repository.layout import Snapshot
from model_repository.sources import ModelId
from model_repository.states import UNLOADED, OnChange, State, VersionState


@dataclass(slots=True, eq=False)
class Record:
    """One model. Changed on the event loop alone, by the repository; `states` is replaced, never written into.

    `lock` lets one load or unload decide at a time. `generation` is what answers now, None when nothing does.
    `seen` is the snapshot of the last load from disk, successful or not: what poll mode compares with.
    """

    model: ModelId
    on_change: OnChange
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: Generation | None = None
    seen: Snapshot | None = None
    states: dict[str, VersionState] = field(default_factory=dict)
    drains: "set[asyncio.Task[None]]" = field(default_factory=set)  # generations that are closing

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def is_serving(self) -> bool:
        return self.generation is not None

    @property
    def steps(self) -> tuple[ModelId, ...]:
        """The models that a serving ensemble needs; () for others."""
        return self.generation.steps if self.generation else ()

    @property
    def is_unloaded(self) -> bool:
        """Taken down on purpose, as opposed to failed."""
        return bool(self.states) and all(
            state.state is State.UNLOADING or state == VersionState(State.UNAVAILABLE, UNLOADED)
            for state in self.states.values()
        )

    @property
    def is_loading(self) -> bool:
        return any(state.state is State.LOADING for state in self.states.values())

    def live_versions(self) -> list[str]:
        return list(self.generation.models) if self.generation else []

    def begin_load(self, versions: list[str]) -> None:
        """What answers keeps its state: only versions that are new become LOADING."""
        live = self.live_versions()
        self._update({version: VersionState(State.LOADING) for version in versions if version not in live})

    def end_load(self, generation: Generation) -> Generation | None:
        """`generation` answers from now on. Returns what is to close, whose other versions are UNLOADING."""
        old, self.generation = self.generation, generation
        gone = [version for version in (old.models if old else ()) if version not in generation.models]
        changes = {version: VersionState(State.UNLOADING) for version in gone}
        changes |= {version: VersionState(State.READY) for version in generation.models}
        self._update(changes, drop="")
        return old.without(generation.models) if old else None

    def fail_load(self, reasons: dict[str, str]) -> None:
        """Version -> why; "" is all of them. READY versions go on and carry the reason of the failed reload."""
        live, overall = self.live_versions(), reasons.get("")
        if live:
            text = f"reload failed: {'; '.join(dict.fromkeys(reasons.values()))}"
            self._update({version: VersionState(State.READY, text) for version in live})
        concerned = {*reasons, *self._in(State.LOADING), *(self.states if overall else ())} - {*live}
        if live or len(concerned) > 1:
            concerned.discard("")  # it stands for versions, once these are known
        changes = {
            version: VersionState(State.UNAVAILABLE, reasons.get(version, overall or UNLOADED))
            for version in concerned
            if self._may_fail(version)
        }
        self._update(changes, drop=None if "" in changes else "")

    def keep(self) -> None:
        """A load found nothing changed: what a failed reload left as a reason is past."""
        self._update({version: VersionState(State.READY) for version in self.live_versions()})

    def begin_unload(self) -> Generation | None:
        """Nothing answers from now on. Returns the generation to close, and forgets how loads failed."""
        old, self.generation, self.seen = self.generation, None, None
        changes = {version: VersionState(State.UNLOADING) for version in (old.models if old else ())}
        changes |= {
            version: VersionState(State.UNAVAILABLE, UNLOADED)
            for version in self._in(State.UNAVAILABLE)
            if version not in changes
        }
        self._update(changes)
        return old

    def end_drain(self, versions: list[str]) -> None:
        """Closed versions, unless a later load has taken them up since."""
        self._update(
            {
                version: VersionState(State.UNAVAILABLE, UNLOADED)
                for version in self._in(State.UNLOADING)
                if version in versions
            }
        )

    def _may_fail(self, version: str) -> bool:
        """Not so a version that is on its way out: it ends as unloaded."""
        state = self.states.get(version)
        return state is None or state.state is not State.UNLOADING

    def _in(self, state: State) -> list[str]:
        return [version for version, entry in self.states.items() if entry.state is state]

    def _update(self, changes: dict[str, VersionState], drop: str | None = None) -> None:
        before = self.states
        self.states = {version: state for version, state in {**before, **changes}.items() if version != drop}
        for version, state in changes.items():
            if before.get(version) != state:
                self.on_change(self.model.label, version, state.state, state.reason)
