"""The batches that are in an instance's process, and which of their requests have not ended."""

import time
from dataclasses import dataclass
from math import inf

from backends.api.base import RequestBatch
from backends.python.options import PythonOptions


@dataclass(slots=True, eq=False)
class Run:
    """A batch in the process. `executing` until `execute` has returned; answers may come after that.

    `deadline` and `abandoned` are when its execution has taken too long: for all, and since nobody waits for it.
    """

    number: int
    batch: RequestBatch
    first: int  # number of its first request, the others follow
    deadline: float
    executing: bool = True
    abandoned: float = inf


class Runs:
    """Changed on the instance's thread alone. Numbers are never used again, also not by the next process."""

    def __init__(self, options: PythonOptions) -> None:
        self.num_executing = 0
        self._options = options
        self._runs: dict[int, Run] = {}
        self._requests: dict[int, tuple[Run, int]] = {}
        self._timed: dict[int, float] = {}  # requests with a deadline
        self._next_request = 1
        self._next_run = 1

    @property
    def num_open(self) -> int:
        return len(self._requests)

    @property
    def executing(self) -> list[Run]:
        """Batches in `execute`, as of this moment, for any thread to look at."""
        return [run for run in self._runs.copy().values() if run.executing]

    @property
    def next_look(self) -> float:
        """When there is something `overdue` or hung; inf for never."""
        when = inf
        for run in self._runs.values():
            if run.executing:
                when = min(when, run.deadline, run.abandoned)
        return min(when, *self._timed.values()) if self._timed else when

    def get(self, number: int) -> Run | None:
        return self._runs.get(number)

    def find(self, request: int) -> tuple[Run, int] | None:
        """A request's run and its place there; None once it has ended."""
        return self._requests.get(request)

    def begin(self, batch: RequestBatch) -> Run:
        timeout = self._options.execution_timeout_secs
        run = Run(self._next_run, batch, self._next_request, time.monotonic() + timeout if timeout else inf)
        self._next_run += 1
        self._next_request += len(batch.requests)
        self._runs[run.number] = run
        self.num_executing += 1
        for index, request in enumerate(batch.requests):
            self._requests[run.first + index] = (run, index)
            if request.deadline is not None:
                self._timed[run.first + index] = request.deadline
        return run

    def returned(self, run: Run) -> None:
        """`execute` has returned."""
        if run.executing:
            run.executing = False
            self.num_executing -= 1
            self._drop_if_over(run)

    def forget(self, request: int) -> None:
        """It has ended."""
        known = self._requests.pop(request, None)
        if known is None:
            return
        self._timed.pop(request, None)
        run, _ = known
        self._drop_if_over(run)
        if run.executing and run.batch.is_over and self._options.abandoned_timeout_secs:
            run.abandoned = time.monotonic() + self._options.abandoned_timeout_secs

    def overdue(self, now: float) -> list[int]:
        """Requests whose deadline has passed."""
        return [number for number, deadline in self._timed.items() if deadline <= now]

    def is_hung(self, now: float) -> bool:
        return any(run.executing and min(run.deadline, run.abandoned) <= now for run in self._runs.values())

    def clear(self) -> list[RequestBatch]:
        """Forget all; the batches, whose requests are still to be ended."""
        batches = [run.batch for run in self._runs.values()]
        self._runs.clear()
        self._requests.clear()
        self._timed.clear()
        self.num_executing = 0
        return batches

    def _drop_if_over(self, run: Run) -> None:
        if run.batch.is_over and not run.executing:
            self._runs.pop(run.number, None)
