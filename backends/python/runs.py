"""The batches that are in an instance's process, and which of their requests have not ended."""

import time
from dataclasses import dataclass
from math import inf

from backends.api.base import RequestBatch
from backends.python.options import PythonOptions


@dataclass(slots=True, eq=False)
class Run:
    """A batch in the process. `returned` once `execute` has returned; answers may come after that.

    `start` is when its execution can have begun, inf while it waits in the process for the one before it. `abandoned` is
    when its execution has gone on for too long after the last of its callers left.
    """

    number: int
    batch: RequestBatch
    first: int  # number of its first request, the others follow
    start: float = inf
    returned: bool = False
    abandoned: float = inf


class Runs:
    """Changed on the instance's thread alone. Numbers are never used again, also not by the next process.

    `is_concurrent`: the process executes all its runs at once; else one by one, in the order they were begun.
    """

    def __init__(self, options: PythonOptions) -> None:
        self.is_concurrent = False
        self.num_executing = 0  # those that wait for the one before them too
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
    def all(self) -> list[Run]:
        """Those that have not returned, as of this moment, for any thread to look at."""
        return [run for run in self._runs.copy().values() if not run.returned]

    @property
    def executing(self) -> list[Run]:
        """Those of them that do not wait for the one before them."""
        return [run for run in self.all if run.start != inf]

    @property
    def next_look(self) -> float:
        """When there is something `overdue` or hung; inf for never."""
        when = min(self._timed.values()) if self._timed else inf
        for run in self._runs.values():
            if not run.returned and run.start != inf:
                when = min(when, self._limit(run))
        return when

    def get(self, number: int) -> Run | None:
        return self._runs.get(number)

    def find(self, request: int) -> tuple[Run, int] | None:
        """A request's run and its place there; None once it has ended."""
        return self._requests.get(request)

    def begin(self, batch: RequestBatch) -> Run:
        run = Run(self._next_run, batch, self._next_request)
        if self.is_concurrent or not self.num_executing:
            run.start = time.monotonic()
        self._next_run += 1
        self._next_request += len(batch.requests)
        self._runs[run.number] = run
        self.num_executing += 1
        for index, request in enumerate(batch.requests):
            self._requests[run.first + index] = (run, index)
            if request.deadline is not None:
                self._timed[run.first + index] = request.deadline
        return run

    def end(self, run: Run) -> None:
        """`execute` has returned; the next one begins."""
        if run.returned:
            return
        run.returned = True
        self.num_executing -= 1
        self._drop_if_over(run)
        if self.num_executing and not self.is_concurrent:
            following = next(each for each in self._runs.values() if not each.returned)
            following.start = time.monotonic()
            following.batch.begins(following.start)

    def forget(self, request: int) -> None:
        """It has ended."""
        known = self._requests.pop(request, None)
        if known is None:
            return
        self._timed.pop(request, None)
        run, _ = known
        self._drop_if_over(run)
        if not run.returned and run.batch.is_over and self._options.abandoned_timeout_secs:
            run.abandoned = time.monotonic() + self._options.abandoned_timeout_secs

    def overdue(self, now: float) -> list[int]:
        """Requests whose deadline has passed."""
        return [number for number, deadline in self._timed.items() if deadline <= now] if self._timed else []

    def is_hung(self, now: float) -> bool:
        return any(not run.returned and run.start != inf and self._limit(run) <= now for run in self._runs.values())

    def clear(self) -> list[Run]:
        """Forget all; the runs, whose requests are still to be ended or begun again."""
        runs = list(self._runs.values())
        self._runs.clear()
        self._requests.clear()
        self._timed.clear()
        self.num_executing = 0
        return runs

    def _limit(self, run: Run) -> float:
        """When its execution has taken too long."""
        timeout = self._options.execution_timeout_secs
        late = run.start + timeout if timeout else inf
        if run.abandoned == inf:
            return late
        return min(late, max(run.abandoned, run.start + self._options.abandoned_timeout_secs))

    def _drop_if_over(self, run: Run) -> None:
        if run.batch.is_over and run.returned:
            self._runs.pop(run.number, None)
