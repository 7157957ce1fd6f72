"""Quick models run on the thread that brings their requests, in place of an instance's own.

Handing a request to another thread and its answer back costs more than a small model does: measured for y = x on a busy
machine, 180 µs of processor time a request in place of 274 at one HTTP client, and 93 in place of 143 at 16. On an event
loop a batch runs at the end of the loop's turn, so requests that came together are run together.
"""

import asyncio
import time

from backends.api.wakes import JoinedWakes
from scheduler.batch import Waiting
from scheduler.dynamic import BatchScheduler
from scheduler.response_cache import num_input_bytes

QUICK = 100e-6  # seconds of a run that may hold up an event loop: less than a body of some 50 KB takes to parse
_TURN = 0.5e-3  # seconds after which a caller sees to what else it has to do
_LARGE = 64 * 1024  # bytes of input that a model may take longer over than it used to
_WEIGHT = 1 / 32


class RunTime:
    """How long a model's runs take: a running mean, which one slow run raises for long and quick ones lower slowly."""

    def __init__(self) -> None:
        self._mean = 2 * QUICK

    @property
    def is_quick(self) -> bool:
        return self._mean < QUICK

    def add(self, seconds: float) -> None:
        self._mean += _WEIGHT * (seconds - self._mean)


class StandIn:
    """Takes requests to the queue of a model, and while it is quick runs it on their threads, for up to `_TURN` at a time.

    An event loop then wakes its readers, sees to its sockets and goes on in its next turn; a thread without one leaves
    the rest to the instances'. That brings one request at a time: where requests are joined, it leaves them to gather.
    """

    def __init__(self, scheduler: BatchScheduler, run_time: RunTime, *, joins: bool) -> None:
        self._scheduler = scheduler
        self._joins = joins
        self._run_time = run_time
        self._is_due = False

    def submit(self, waiting: Waiting) -> None:
        """Queue a request, and see to it if that is left to this thread: now, or on an event loop at the end of its turn.

        Raises what `BatchScheduler.submit` does.
        """
        is_light = self._run_time.is_quick and num_input_bytes(waiting.request) <= _LARGE
        loop = _running_loop() if is_light else None
        may_lend = is_light and (loop is not None or not self._joins)
        if not self._scheduler.submit(waiting, may_lend=may_lend):
            return
        if loop is None:
            if not self._run():
                self._scheduler.call()
        elif not self._is_due:
            self._run_later(loop)

    def _run_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = True
        loop.call_soon(self._run_turn, loop)

    def _run_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        with JoinedWakes():
            is_done = self._run()
        if is_done or self._is_due:
            return
        if self._run_time.is_quick:
            self._run_later(loop)
        else:
            self._scheduler.call()

    def _run(self) -> bool:
        """Run what waits, one batch after the other, for up to `_TURN`; whether there is none left to run here."""
        end = time.monotonic() + _TURN
        while (lent := self._scheduler.lend()) is not None:
            seat, batch = lent
            assert seat.run is not None
            try:
                seat.run(batch)
            finally:
                self._scheduler.take_back(seat)
            if time.monotonic() > end:
                return False
        return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
