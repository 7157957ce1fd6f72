"""Where the threads that run a model wait for work."""

import threading
from collections.abc import Callable
from math import inf

from backends.api.base import Gate
from scheduler.batch import Waiting

Run = Callable[[list[Waiting]], None]


class Seat:
    """Where one thread waits for work. `gate` is held while it is closed; only the scheduler opens it.

    Whoever has more to wait for than work brings a gate of its own. `run` runs a batch as the thread would, for others
    to call while it sits idle; None where only the thread itself may.
    """

    __slots__ = ("busy", "called", "gate", "leaving", "lent", "run", "timing")

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate: Gate = threading.Lock() if gate is None else gate
        if gate is None:
            self.gate.acquire()
        self.called = False  # the gate was opened and the thread has not come back yet
        self.timing = False  # it waits for a batch's delay to pass
        self.busy = False  # it has a batch
        self.leaving = False  # it was dismissed
        self.lent = False  # somebody else runs a batch in its place
        self.run: Run | None = None


class Seats:
    """Which threads sit idle at one queue, and which are on their way to it. Not thread-safe: its scheduler locks.

    The thread that sat down last is the first to be called.
    """

    def __init__(self) -> None:
        self._idle: list[Seat] = []
        self._num_called = 0
        self._num_timing = 0

    @property
    def num_free(self) -> int:
        """Threads that sit idle or are on their way."""
        return len(self._idle) + self._num_called

    @property
    def num_called(self) -> int:
        return self._num_called

    @property
    def is_timing(self) -> bool:
        """Whether a thread waits for a batch's delay to pass."""
        return self._num_timing > 0

    @property
    def can_lend(self) -> bool:
        """Whether no thread is on its way to the queue, and one that sits idle can be stood in for."""
        return not self._num_called and not self._num_timing and bool(self._idle) and self._idle[-1].run is not None

    def call_one(self) -> None:
        """Call a thread, if one sits idle and none is on its way: that one calls the next if it leaves work behind."""
        if self._idle and not self._num_called:
            self.call()

    def call(self) -> None:
        """Call a thread, of which one sits idle."""
        seat = self._idle.pop()
        seat.called = True
        self._num_called += 1
        self._stop_timing(seat)
        seat.gate.release()

    def call_all(self) -> None:
        while self._idle:
            self.call()

    def came(self, seat: Seat) -> bool:
        """Its thread has come to the queue; whether it was called, or else by itself."""
        if not seat.called:
            self._stand_up(seat)
            return False
        seat.called = False
        self._num_called -= 1
        seat.gate.acquire(blocking=False)  # still open if the wait had ended by itself just before the call
        return True

    def sit_down(self, seat: Seat, wait: float) -> None:
        """Its thread waits to be called, for `wait` seconds at most; inf for ever."""
        self._idle.append(seat)
        if wait != inf:
            seat.timing = True
            self._num_timing += 1

    def lend(self) -> Seat:
        """A seat that `can_lend` has promised, until `take_back`."""
        seat = self._idle.pop()
        seat.lent = True
        return seat

    def take_back(self, seat: Seat) -> None:
        """Its thread sits idle again, or goes if it was dismissed meanwhile."""
        seat.lent = False
        if seat.leaving:
            seat.gate.release()
        else:
            self._idle.append(seat)

    def dismiss(self, seat: Seat) -> None:
        """Let its thread go: now if it waits, else when it next comes."""
        seat.leaving = True
        if not (seat.called or seat.lent):
            self._stand_up(seat)
            seat.gate.release()

    def check(self) -> None:
        """Recount what is counted on the way (for tests)."""
        assert sum(seat.timing for seat in self._idle) == self._num_timing

    def _stand_up(self, seat: Seat) -> None:
        if seat in self._idle:
            self._idle.remove(seat)
            self._stop_timing(seat)

    def _stop_timing(self, seat: Seat) -> None:
        if seat.timing:
            seat.timing = False
            self._num_timing -= 1
