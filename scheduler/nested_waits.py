"""Which executions of custom models wait for which calls, to refuse a call that could never be answered."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.python.calls import NestedCall
from scheduler.stalls import Work, is_stuck

if TYPE_CHECKING:
    from backends.python.instance import PythonInstance


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """A blocking call under way: who makes it, and the model it asks."""

    call: NestedCall
    model: LiveModel


class NestedWaits:
    """The blocking calls under way on a server. Any thread begins and ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # whoever looks at what waits for what must also have his own wait in it
        self._waits: dict[tuple[PythonInstance, int], _Waits] = {}  # by the execution that waits
        self._held: dict[PythonInstance, NestedCall] = {}  # instances of which every execution waits, and for what

    def begin(self, call: NestedCall, model: LiveModel) -> None:
        """Raises ServingError(UNAVAILABLE) for a call that would wait for itself."""
        if call.blocks:
            with self._lock:
                self._waits[call.caller, call.run] = _Waits(call, model)
                if call.blocks_all:
                    self._held[call.caller] = call
                if is_stuck((call.caller, call.run), self._next_of):
                    self._drop(call)
                    raise _deadlock(call)

    def end(self, call: NestedCall) -> None:
        if call.blocks:
            with self._lock:
                self._drop(call)

    # Under the lock

    def _drop(self, call: NestedCall) -> None:
        """A call that was left for the next one is no longer what its execution waits for."""
        work = call.caller, call.run
        if work in self._waits and self._waits[work].call is call:
            del self._waits[work]
        if self._held.get(call.caller) is call:
            del self._held[call.caller]

    def _next_of(self, work: Work) -> list[Work] | None:
        """What an execution waits for, any of which would do; None for one that is not waiting."""
        instance, run = work
        holder = self._held.get(instance)
        if holder is not None and holder.run != run:
            return [(instance, holder.run)]
        waits = self._waits.get(work)
        return None if waits is None else self._answerers(waits)

    def _answerers(self, waits: _Waits) -> list[Work] | None:
        """The executions of which one has to end before the call does; None if there need not be any."""
        backend = getattr(waits.model, "backend", None)
        instances: list[PythonInstance] = getattr(backend, "instances", [])
        for instance in instances:
            for run in instance.runs:
                if any(request is waits.call.request for request in run.batch.requests):
                    executing = instance.executing
                    return [(instance, each.number) for each in ([run] if run in executing else executing)]
        held = [(instance, self._held[instance].run) for instance in instances if instance in self._held]
        if held:  # one of these may be given the request, free or not
            return held
        if any(instance.has_room for instance in instances):
            return None
        return [(instance, run.number) for instance in instances for run in instance.executing] or None


def _deadlock(call: NestedCall) -> ServingError:
    model = call.request.model
    remedy = f"give '{model}' more instances, or do not call it while it calls back"
    if call.blocks_all:
        remedy = "await async_exec() in place of exec(), which stops the event loop of the model that calls"
    return ServingError(
        Code.UNAVAILABLE,
        f"model '{call.caller.model}' calls model '{model}', of which every instance waits for this call to end: {remedy}",
        reason="nested_call_deadlock",
    )
