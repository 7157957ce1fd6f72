"""A model's instances: where they run, the thread each one lives on, and how many there are."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig
from scheduler.rate_limit import Claim, RateLimiter
from scheduler.seats import Seat

_KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}


def placements(config: ModelConfig, num_gpus: int = 0) -> list[tuple[InstanceGroup, Placement]]:
    """Every instance `config` asks for; `num_gpus` are the GPUs its backend can use.

    A group's count is for each GPU it lists (all, when it lists none), or in all on the CPU. KIND_AUTO is the GPUs
    where there are any. Raises ServingError(INVALID) for a GPU that is not there.
    """
    groups = config.instance_groups or (InstanceGroup(),)
    placed: list[tuple[InstanceGroup, Placement]] = []
    for number, group in enumerate(groups):
        name = group.name or f"{config.name}_{number}"
        devices = _devices(config.name, name, group, num_gpus)
        kinds = [(device, turn) for device in devices for turn in range(group.count)]
        kind = _KINDS.get(group.kind, "GPU" if num_gpus or group.gpus else "CPU")
        placed += [(group, Placement(f"{name}_{index}", kind, device)) for index, (device, _) in enumerate(kinds)]
    return placed


def _devices(model: str, name: str, group: InstanceGroup, num_gpus: int) -> Sequence[int]:
    wants_gpu = group.kind == "KIND_GPU" or (group.kind == "KIND_AUTO" and (num_gpus > 0 or bool(group.gpus)))
    if not wants_gpu:
        return (0,)
    for gpu in group.gpus:
        if not 0 <= gpu < num_gpus:
            raise ServingError(
                Code.INVALID,
                f"instance group {name} of model {model} specifies invalid or unsupported gpu id {gpu}, "
                f"the backend has {num_gpus} GPU(s)",
            )
    if num_gpus == 0:
        raise ServingError(
            Code.INVALID, f"instance group {name} of model {model} has kind {group.kind} but no GPUs are available"
        )
    return group.gpus or range(num_gpus)


class _Instance(Protocol):
    def close(self) -> None: ...


InstanceT = TypeVar("InstanceT", bound=_Instance)


class Host(Protocol[InstanceT]):
    """What a model does with an instance, on that instance's thread where nothing else is said."""

    def make(self, placement: Placement) -> InstanceT:
        """Made and warmed up."""
        ...

    def seat(self, instance: InstanceT) -> Seat:
        """Where its thread waits."""
        ...

    def begin(self, instance: InstanceT) -> None:
        """It will serve, or stand by. On any thread."""
        ...

    def serve(self, seat: Seat, claim: Claim | None, instance: InstanceT) -> None:
        """Run batches until there is no more work, or the seat is dismissed."""
        ...

    def dismiss(self, seat: Seat) -> None:
        """Let the thread of `seat` go, after its batch if it has one. On any thread."""
        ...

    def give_up(self) -> None:
        """The model will never serve: what is being made need not be finished. On any thread."""
        ...


class InstanceThread(Generic[InstanceT]):
    """One instance on one thread: made there, used there and closed there. Owns its claim.

    `ready` completes when the instance has been made and fails with what stopped it.
    """

    def __init__(self, placement: Placement, group: InstanceGroup, host: Host[InstanceT], claim: Claim | None) -> None:
        self.placement = placement
        self.group = group
        self.ready: Future[None] = Future()
        self._host = host
        self._claim = claim
        self._seat: Seat | None = None
        self._instance: InstanceT | None = None
        self._go = threading.Event()
        self._wanted = True
        # daemon: a model that never comes back must not keep a process from exiting
        self._thread = threading.Thread(target=self._run, name=placement.name, daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Start to serve, once `ready`."""
        assert self._instance is not None
        self._host.begin(self._instance)
        self._go.set()

    def abandon(self) -> None:
        """Close the instance without serving: the load failed elsewhere."""
        self._wanted = False
        self._go.set()

    def retire(self) -> None:
        """Serve no more, once `ready`."""
        assert self._seat is not None
        self._host.dismiss(self._seat)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self._live()
        finally:
            if self._claim is not None:
                self._claim.drop()

    def _live(self) -> None:
        try:
            instance = self._instance = self._host.make(self.placement)
        except BaseException as error:  # a library may raise anything; the loader waits for it
            self.ready.set_exception(error)
            return
        try:
            seat = self._seat = self._host.seat(instance)
            self.ready.set_result(None)
            self._go.wait()
            if self._wanted and self.group.passive:
                while not seat.leaving:
                    seat.gate.acquire()
            elif self._wanted:
                self._host.serve(seat, self._claim, instance)
        finally:
            self._instance = None
            instance.close()


class Instances(Generic[InstanceT]):
    """The instances of one model, as many as its configuration asks for. Used on the event loop, one call at a time."""

    def __init__(self, host: Host[InstanceT], limiter: RateLimiter | None = None) -> None:
        self._host = host
        self._limiter = limiter
        self._threads: list[InstanceThread[InstanceT]] = []
        self._retired: list[InstanceThread[InstanceT]] = []  # on their way out

    @property
    def names(self) -> list[str]:
        return [thread.placement.name for thread in self._threads]

    async def resize(self, config: ModelConfig, num_gpus: int = 0) -> None:
        """Have the instances of `config`: those that are missing come first, then those too many go after their batch.

        Raises what stopped an instance from being made; all is then as before.
        """
        kept, wanted = _matched(self._threads, placements(config, num_gpus))
        added: list[InstanceThread[InstanceT]] = []
        try:
            for group, placement in _renamed(wanted, {thread.placement.name for thread in kept}):
                claim = self._limiter.claim(group, placement) if self._limiter and group.resources else None
                added.append(InstanceThread(placement, group, self._host, claim))
            readiness = (asyncio.wrap_future(thread.ready) for thread in added)
            for outcome in await asyncio.gather(*readiness, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            if not self._threads:
                self._host.give_up()
            for thread in added:
                thread.abandon()
            await asyncio.shield(asyncio.gather(*(asyncio.to_thread(thread.join) for thread in added)))
            raise
        gone = [thread for thread in self._threads if thread not in kept]
        self._threads = [*kept, *added]
        self._retired = [*(thread for thread in self._retired if thread.is_alive), *gone]
        for thread in added:
            thread.go()
        for thread in gone:
            thread.retire()

    def join_retired(self) -> None:
        """Return when those that were too many are gone. Blocks."""
        for thread in self._retired:
            thread.join()

    def close(self) -> None:
        """Return when every thread has ended. Serving ones end when their scheduler is closed. Blocks."""
        for thread in self._threads:
            if thread.group.passive:
                thread.retire()
        for thread in self._threads:
            thread.join()
        self.join_retired()


Placed = list[tuple[InstanceGroup, Placement]]


def _matched(
    threads: Sequence[InstanceThread[InstanceT]], wanted: Placed
) -> tuple[list[InstanceThread[InstanceT]], Placed]:
    """The threads that can stay as they are, and what is then still missing."""
    left = list(threads)
    kept: list[InstanceThread[InstanceT]] = []
    missing: Placed = []
    for group, placement in wanted:
        likeness = _likeness(group, placement)
        match = next((thread for thread in left if _likeness(thread.group, thread.placement) == likeness), None)
        if match is None:
            missing.append((group, placement))
        else:
            left.remove(match)
            kept.append(match)
    return kept, missing


def _likeness(group: InstanceGroup, placement: Placement) -> tuple[object, ...]:
    """What an instance is, but for its name and how many there are like it."""
    return (replace(group, name="", count=0, gpus=()), placement.kind, placement.device)


def _renamed(placed: Placed, taken: set[str]) -> Placed:
    """The same under names that nobody has."""
    renamed: Placed = []
    for group, placement in placed:
        name, number = placement.name, 0
        while name in taken:
            number += 1
            name = f"{group.name or placement.name}_{number}"
        taken = {*taken, name}
        renamed.append((group, replace(placement, name=name)))
    return renamed
