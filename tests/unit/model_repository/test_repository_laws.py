"""Whatever loads, unloads, reloads, failures and requests come, in any order: nothing accepted is lost, nothing leaks."""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository
from model_repository.states import State

NAMES = ("a", "a", "b")
TEXTS = {
    "good": "",
    "all": "version_policy { all {} }",
    "half": 'version_policy { all {} } parameters { key: "fail_2" value { string_value: "no" } }',
    "fails": 'parameters { key: "fail" value { string_value: "no" } }',
    "crashes": 'parameters { key: "crash" value { string_value: "no" } }',
    "nonsense": "max_batch: 3",
}
LEGAL = {
    None: {State.LOADING, State.UNAVAILABLE},
    State.LOADING: {State.READY, State.UNAVAILABLE},
    State.READY: {State.READY, State.UNLOADING},  # again READY: with or without the reason of a failed reload
    State.UNLOADING: {State.UNAVAILABLE, State.LOADING},
    State.UNAVAILABLE: {State.LOADING, State.UNAVAILABLE},
}

_names = st.sampled_from(NAMES)
# bring_up and take_down are waited for, load, override and unload are left to run
_acts = st.sampled_from(["bring_up", "bring_up", "take_down", "load", "override", "unload", "ask", "ask", "ask"])
_writes = st.tuples(st.just("write"), _names, st.sampled_from(sorted(TEXTS)), st.sampled_from([(1,), (1, 2)]))
operations = st.lists(
    st.one_of(
        st.tuples(_acts, _names), st.tuples(_acts, _names), _writes, st.tuples(st.sampled_from(["answer", "settle"]))
    ),
    min_size=10,
    max_size=30,
)


@dataclass
class World:
    """The repository, what was asked of it, and the states it reported."""

    write: Callable[..., Path]
    loader: Any
    repository: Repository
    control: list[asyncio.Task[None]] = field(default_factory=list)
    accepted: list[InferenceRequest] = field(default_factory=list)
    refused: list[Code] = field(default_factory=list)

    def do(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("write", name, text, versions):
                self.write(name, TEXTS[text], versions)
            case ("bring_up", name):
                self.write(name)
                self.do(("load", name))
            case ("load", name):
                self.control.append(asyncio.create_task(self.repository.load(name)))
            case ("override", name):
                config = '{"backend": "identity"}'
                self.control.append(asyncio.create_task(self.repository.load(name, config, {"file:4/x": b"x"})))
            case ("unload" | "take_down", name):
                self.control.append(asyncio.create_task(self.repository.unload(name)))
            case ("ask", name):
                self.ask(name)
            case ("answer",):
                self.answer()

    def ask(self, name: str) -> None:
        request = InferenceRequest(name, "", [])
        try:
            model = self.repository.find(name)
        except ServingError as error:
            self.refused.append(error.code)
            return
        model.infer(request)  # what `find` returns takes work: a refusal here fails the test
        self.accepted.append(request)

    def answer(self) -> None:
        for model in self.loader.models:
            if not model.closed:
                model.answer()


@settings(max_examples=60, deadline=None)
@given(steps=operations)
def test_accepted_requests_are_answered_and_every_model_is_closed_once(
    steps: list[tuple[Any, ...]], new_loader: Callable[[], Any], writer_in: Callable[[Path], Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live_through(steps, Path(folder), new_loader(), writer_in(Path(folder))))


async def live_through(steps: list[tuple[Any, ...]], root: Path, loader: Any, write: Callable[..., Path]) -> None:
    seen: dict[tuple[str, str], State] = {}

    def on_change(name: str, version: str, state: State, reason: str) -> None:
        before = seen.get((name, version))
        assert state in LEGAL[before], f"{name} {version}: {before} -> {state} ({reason})"
        seen[name, version] = state

    options = RepositoryOptions(paths=(root / "models",), mode="explicit", load_threads=2)
    world = World(write, loader, Repository(options, loader, on_change))
    for step in steps:
        world.do(step)
        await asyncio.sleep(0)
        if step[0] in ("settle", "bring_up", "take_down"):
            await settle(world, lambda: all(task.done() for task in world.control))
    closing = asyncio.create_task(world.repository.close())
    await settle(world, closing.done)
    await closing
    for outcome in await asyncio.gather(*world.control, return_exceptions=True):
        assert outcome is None or isinstance(outcome, ServingError), outcome
    check_nothing_lost(world, seen)


async def settle(world: World, is_done: Callable[[], bool]) -> None:
    """Let everything in progress come to its end, answering what is asked meanwhile."""
    async with asyncio.timeout(20):
        while not is_done():
            world.answer()
            await asyncio.sleep(0.0005)  # loads read the disk in threads


def check_nothing_lost(world: World, seen: dict[tuple[str, str], State]) -> None:
    assert set(world.refused) <= {Code.NOT_FOUND, Code.UNAVAILABLE}
    assert all(request.stream.num_waiting == 1 and request.stream.ended for request in world.accepted)
    assert [model.closed for model in world.loader.models] == [1] * len(world.loader.models)
    assert all(not model.folder.exists() for model in world.loader.models if model.version == "4")
    assert set(seen.values()) <= {State.UNAVAILABLE}
    assert world.repository.ready_models() == []
    assert world.repository.index(ready_only=True) == []
