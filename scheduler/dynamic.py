"""The queue between those who ask and the threads that run a model.

Arrivals are pulled: a free thread takes what has gathered by the time it runs, so batches grow by
themselves under load. At most one thread is on its way to the queue at a time; the one that arrives
wakes the next if it leaves work behind.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf

from backends.api.errors import Code, ServingError
from scheduler.alarm import Alarm
from scheduler.batch import QUEUE_FULL, BatchPolicy, BatchQueue, Waiting, next_batch, refusal
from scheduler.seats import Seat, Seats

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
_LONGEST_WAIT = 3600.0  # seconds; a thread that wakes early only looks again


class BatchScheduler:
    """Forms batches for the threads that `take` them.

    A request that was submitted leaves exactly once: in a batch, by `discard`, or through `on_refused`
    with the error that its queue policy or its deadline gave it, at the time set and not when a thread is free.
    `on_accepted` is called in queue order, under the lock.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        on_refused: Callable[[Waiting, ServingError], None],
        alarm: Alarm,
        on_accepted: Callable[[Waiting], None] | None = None,
    ) -> None:
        self._policy = policy
        self._on_refused = on_refused
        self._on_accepted = on_accepted
        self._alarm = alarm
        self._lock = threading.Lock()
        self._queue = BatchQueue(policy)
        self._formed: deque[list[Waiting]] = deque()  # batches that wait for a thread already called
        self._seats = Seats()
        self._num_busy = 0  # batches formed and not finished
        self._smallest_preferred = min(policy.preferred, default=0)
        self._armed = inf
        self._closing = False
        self._suspended: ServingError | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that are queued and not yet in a batch."""
        return len(self._queue)

    @property
    def is_suspended(self) -> bool:
        return self._suspended is not None

    def submit(self, waiting: Waiting, *, may_lend: bool = False) -> bool:
        """Queue a request; whether it is left to the caller, which `may_lend` allows, to see to it by `lend`.

        Raises ServingError: OVERLOADED with a full queue, UNAVAILABLE while closing.
        """
        refused: list[Waiting] = []
        is_left = False
        with self._lock:
            if self._closing:
                raise ServingError(Code.UNAVAILABLE, STOPPING, reason="closing")
            if self._suspended is not None:
                raise self._suspended
            queue = self._queue
            if queue.is_full(waiting.level):
                refused = self._make_room(waiting.level)
            is_full = queue.is_full(waiting.level)
            if not is_full:
                joins = self._seats.is_timing and len(queue) and waiting.key == queue.last_key
                queue.add(waiting)
                if self._on_accepted is not None:
                    self._on_accepted(waiting)
                if not (joins and queue.num_rows < self._smallest_preferred):
                    is_left = may_lend and self._seats.can_lend
                    if not is_left:
                        self._seats.call_one()
                if queue.next_deadline < self._armed:
                    self._arm()
        self._refuse(refused)
        if is_full:
            raise ServingError(Code.OVERLOADED, f"{waiting.request.label} {QUEUE_FULL}", reason="queue_full")
        return is_left

    def discard(self, waiting: Waiting) -> bool:
        """Take back a request that still waits; False if it is in a batch or gone."""
        with self._lock:
            return self._queue.remove(waiting)

    def take(self, seat: Seat) -> list[Waiting] | None:
        """The next batch for the calling thread, None when it was dismissed or the scheduler is closed and empty. Blocks.

        To ask again is to say that the last batch is finished.
        """
        while isinstance(found := self.look(seat), float):
            seat.gate.acquire(timeout=-1 if found == inf else min(found, _LONGEST_WAIT))
        return found

    def look(self, seat: Seat) -> list[Waiting] | float | None:
        """`take` for those who must not block: without a batch, the seconds to wait at the gate before asking again."""
        with self._lock:
            self._finish(seat)
            was_called = self._seats.came(seat)  # for a batch that only it may know of
            if seat.leaving and not was_called:
                self._seats.call_one()  # in place of this one, which may have been the one to wait for a delay
                return None
            batch, refused, wait = self._form()
            if batch:
                seat.busy = True
                if len(self._queue):
                    self._seats.call_one()
            is_over = not batch and (self._closing or seat.leaving)
            if not batch and not is_over:
                self._seats.sit_down(seat, wait)
        self._refuse(refused)
        if batch:
            return batch
        return None if is_over else wait

    def lend(self) -> tuple[Seat, list[Waiting]] | None:
        """The seat of a thread that sits idle, with a batch for the caller to run in its place and then `take_back`.

        None when there is nothing to run now or nobody to stand in for; a batch that has to wait is left to the thread.
        """
        with self._lock:
            if not (len(self._queue) and self._seats.can_lend):
                return None
            batch, refused, _ = self._form()
            if batch:
                seat = self._seats.lend()
                seat.busy = True
            elif len(self._queue):
                self._seats.call_one()
        self._refuse(refused)
        return (seat, batch) if batch else None

    def take_back(self, seat: Seat) -> None:
        """The batch of a lent seat is finished, and its thread sits idle again."""
        with self._lock:
            self._finish(seat)
            self._seats.take_back(seat)
            if self._closing:
                self._seats.call_all()
            elif seat.leaving:
                self._seats.call_one()

    def call(self) -> None:
        """Leave what is queued to the threads."""
        with self._lock:
            if len(self._queue):
                self._seats.call_one()

    def take_ahead(self, most: int) -> list[Waiting]:
        """More requests for a thread that has a batch, each to be run by itself: its share of what waits.

        None where requests are joined, where a queue's length or time is limited, and while a thread is free.
        """
        if most <= 0 or not self._policy.runs_ahead:
            return []
        taken: list[Waiting] = []
        refused: list[Waiting] = []
        with self._lock:
            now = time.monotonic()
            num = 0 if self._seats.num_free else min(most, len(self._queue) // max(1, self._num_busy))
            while len(taken) < num:
                batch, late, _ = next_batch(self._queue, self._policy, now)
                taken += batch
                refused += late
                if not batch:
                    break
        self._refuse(refused)
        return taken

    def suspend(self, error: ServingError) -> list[Waiting]:
        """Refuse new requests with `error` until `resume`; those that waited, which have left the queue."""
        with self._lock:
            self._suspended = error
            waiting = list(self._queue)
            for each in waiting:
                self._queue.remove(each)
        return waiting

    def resume(self) -> None:
        with self._lock:
            self._suspended = None

    def dismiss(self, seat: Seat) -> None:
        """Let the thread of `seat` go: after its batch, or now if it waits for work."""
        with self._lock:
            self._seats.dismiss(seat)

    def close(self) -> None:
        """Refuse new requests, hand out what is queued without delay, then let every thread go."""
        with self._lock:
            self._closing = True
            self._policy = replace(self._policy, max_delay=0.0)
            self._seats.call_all()

    def closed(self) -> None:
        """All threads are gone: nothing calls back any more."""
        self._alarm.clear(self._expire)

    def check(self) -> None:
        """Recount what is counted on the way (for tests)."""
        with self._lock:
            waiting = list(self._queue)
            assert len(waiting) == len(self._queue) == len(set(waiting))
            assert sum(item.rows for item in waiting) == self._queue.num_rows
            self._seats.check()

    # Under the lock

    def _form(self) -> tuple[list[Waiting], list[Waiting], float]:
        if self._formed:
            return self._formed.popleft(), [], 0.0
        now = time.monotonic()
        batch, refused, wait = next_batch(self._queue, self._policy, now, busy=self._num_busy > 0)
        if batch:
            self._num_busy += 1
        return batch, refused, wait

    def _make_room(self, level: int) -> list[Waiting]:
        """Form now the batches that free threads are about to take, so that the limit counts only those that wait."""
        refused = self._queue.expire(time.monotonic())
        num_takers = self._seats.num_free
        while self._queue.is_full(level) and len(self._formed) < num_takers:
            batch, late, _ = next_batch(self._queue, self._policy, time.monotonic(), busy=self._num_busy > 0)
            refused += late
            if not batch:
                break
            self._num_busy += 1
            self._formed.append(batch)
            if self._seats.num_called < len(self._formed):
                self._seats.call()
        return refused

    def _finish(self, seat: Seat) -> None:
        if seat.busy:
            seat.busy = False
            self._num_busy -= 1

    def _arm(self) -> None:
        self._armed = self._queue.next_deadline
        if self._armed != inf:
            self._alarm.set(self._expire, self._armed)

    # Outside the lock

    def _expire(self) -> None:
        with self._lock:
            refused = self._queue.expire(time.monotonic())
            self._arm()
        self._refuse(refused)

    def _refuse(self, refused: list[Waiting]) -> None:
        for waiting in refused:
            self._on_refused(waiting, refusal(waiting, time.monotonic()))
