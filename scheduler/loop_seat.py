"""A seat at a queue for an instance that lives on the event loop, where nothing may wait."""

import time
from collections.abc import Callable
from functools import partial
from math import inf

from backends.api.base import RequestInstance
from scheduler.batch import Waiting
from scheduler.dynamic import BatchScheduler
from scheduler.response_cache import num_input_bytes
from scheduler.seats import Seat
from scheduler.sequence import SequenceScheduler

_LARGE = 256 * 1024  # bytes of input that take too long to pass on: up to a millisecond where they are strings


class LoopSeat:
    """Begins batches while the instance is free for them: what a thread that `take`s does, in pieces.

    To be called whenever something may have changed. Gives the time of `time.monotonic()` to be called at the latest,
    None once there is no more work to come.
    """

    def __init__(
        self,
        scheduler: BatchScheduler | SequenceScheduler,
        seat: Seat,
        instance: RequestInstance,
        run: Callable[[list[Waiting]], None],
    ) -> None:
        """`run` begins a batch on the instance and raises nothing."""
        self._scheduler = scheduler
        self._seat = seat
        self._instance = instance
        self._run = run
        self._is_sitting = False  # the scheduler opens the gate when there is work
        self._until = inf  # or it has work then

    def __call__(self) -> float | None:
        if self._is_sitting and not self._seat.gate.acquire(blocking=False) and time.monotonic() < self._until:
            return self._until
        self._is_sitting = False
        while self._instance.is_free:
            found = self._scheduler.look(self._seat)
            if found is None:
                return None
            if isinstance(found, float):
                self._is_sitting, self._until = True, time.monotonic() + found
                return self._until
            if sum(num_input_bytes(waiting.request) for waiting in found) > _LARGE:
                self._instance.aside(partial(self._run, found))
                return inf
            self._run(found)
        return inf
