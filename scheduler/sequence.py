"""Sequence batching: the queue of a model whose requests belong to sequences (triton spec 3.5, 5.2)."""

import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from math import inf

from backends.api.base import Gate
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from scheduler.alarm import Alarm
from scheduler.batch import Waiting
from scheduler.dynamic import STOPPING
from scheduler.seats import Seat
from scheduler.sequence_controls import SequenceControls
from scheduler.sequence_policy import Lane, SequencePolicy
from scheduler.sequence_table import Refused, SequenceTable

_LOG = logging.getLogger(__name__)
_LONGEST_WAIT = 3600.0  # seconds; a thread that wakes early only looks again


class SequenceScheduler:
    """What `BatchScheduler` is for independent requests, for those of sequences: a thread that `take`s is one lane of the table.

    A request that was submitted leaves exactly once: in a batch, with its control inputs, by `discard`, or through
    `on_refused`. `on_accepted` is called in queue order, under the lock.
    """

    def __init__(
        self,
        config: ModelConfig,
        on_refused: Callable[[Waiting, ServingError], None],
        alarm: Alarm,
        on_accepted: Callable[[Waiting], None] | None = None,
        *,
        with_slots: bool = False,
    ) -> None:
        """`with_slots`: requests carry the number of their slot, for `SlotBackend`."""
        self._model = config.name
        self._on_refused = on_refused
        self._on_accepted = on_accepted
        self._alarm = alarm
        self._controls = SequenceControls(config, with_slots=with_slots)
        self._lock = threading.Lock()
        self._table = SequenceTable(SequencePolicy.of(config))
        self._lanes: dict[Seat, Lane] = {}
        self._sitting: set[Seat] = set()
        self._armed = inf
        sequence = config.sequence_batching
        self._is_iterative = sequence is not None and sequence.iterative_sequence
        self._numbers = count(1)  # ids of sequences whose callers gave none
        self._closing = False
        self._suspended: ServingError | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that are queued and not yet in a batch."""
        return self._table.num_waiting

    @property
    def num_sequences(self) -> int:
        """Sequences that hold a slot or wait for one."""
        return self._table.num_sequences

    @property
    def is_suspended(self) -> bool:
        return self._suspended is not None

    def submit(self, waiting: Waiting) -> None:
        """Queue a request. Raises ServingError: INVALID for one that is none of a sequence, UNAVAILABLE while closing."""
        request = waiting.request
        if self._is_iterative and not request.sequence_id:
            request.sequence_id, request.sequence_start = next(self._numbers), True
        if not request.sequence_id:
            raise self._wrong("must specify a non-zero or non-empty correlation ID")
        if waiting.rows != 1:
            raise self._wrong("must specify batch-size 1 due to requirements of sequence batcher")
        self._controls.check(request)
        with self._lock:
            if self._closing:
                raise ServingError(Code.UNAVAILABLE, STOPPING, reason="closing")
            if self._suspended is not None:
                raise self._suspended
            is_conflict = self._table.add(waiting)
            if self._on_accepted is not None:
                self._on_accepted(waiting)
            self._call_ready()
            self._arm()
        if is_conflict:
            _LOG.warning(
                "sequence %s for model '%s' has a conflict: it starts again although its last request had no END",
                request.sequence_id,
                self._model,
            )

    def discard(self, waiting: Waiting) -> bool:
        """Take back a request that still waits, and end its sequence; False if it is in a batch or gone."""
        with self._lock:
            refused = self._table.drop(waiting)
            self._call_ready()
            self._arm()
        self._refuse([(item, error) for item, error in refused if item is not waiting])
        return bool(refused)

    def take(self, seat: Seat) -> list[Waiting] | None:
        """The next batch for the calling thread, None when it was dismissed or the scheduler is closed, and nothing is left for it.

        Blocks.

        To ask again is to say that the last batch is finished.
        """
        while isinstance(found := self.look(seat), float):
            seat.gate.acquire(timeout=-1 if found == inf else min(found, _LONGEST_WAIT))
        return found

    def look(self, seat: Seat) -> list[Waiting] | float | None:
        """`take` for those who must not block: without a batch, the seconds to wait at the gate before asking again."""
        with self._lock:
            lane = self._return(seat)
            refused = self._table.finished(lane, time.monotonic())
            batch, wait = self._form(lane)
            is_leaving = not batch and (self._closing or (seat.leaving and lane.is_empty))
            if is_leaving:
                self._table.remove_lane(self._lanes.pop(seat))
            elif not batch:
                self._sitting.add(seat)
            self._call_ready()
            self._arm()
        self._refuse(refused)
        if batch:
            return batch
        return None if is_leaving else wait

    def take_ahead(self, most: int) -> list[Waiting]:
        """A sequence's next request is not sent before its last has come back."""
        return []

    def lose(self, gate: Gate) -> None:
        """The thread that waits at `gate` has lost the state of its sequences: they are over. Not called from `take`."""
        with self._lock:
            refused = [
                each for seat, lane in self._lanes.items() if seat.gate is gate for each in self._table.lose(lane)
            ]
            self._call_ready()
            self._arm()
        self._refuse(refused)

    def suspend(self, error: ServingError) -> list[Waiting]:
        """Refuse new requests with `error` until `resume`, and end every sequence; those that waited."""
        with self._lock:
            self._suspended = error
            return self._table.drop_all()

    def resume(self) -> None:
        with self._lock:
            self._suspended = None

    def dismiss(self, seat: Seat) -> None:
        """Let the thread of `seat` go when the sequences that it has are over; it gets no new ones."""
        with self._lock:
            seat.leaving = True
            lane = self._lanes.get(seat)
            if lane is None:  # it serves nobody, or has not come yet
                seat.gate.release()
            else:
                lane.is_leaving = True
                self._call_ready()

    def close(self) -> None:
        """Refuse new requests, hand out what is queued without delay, then let every thread go."""
        with self._lock:
            self._closing = True
            self._table.drain()
            for seat in list(self._sitting):
                self._call(seat)

    def closed(self) -> None:
        """All threads are gone: nothing calls back any more."""
        self._alarm.clear(self._expire)

    def check(self) -> None:
        """Recount what is counted on the way (for tests)."""
        with self._lock:
            self._table.check()

    # Under the lock

    def _form(self, lane: Lane) -> tuple[list[Waiting], float]:
        boxes, wait = self._table.next_batch(lane, time.monotonic())
        batch = []
        for box in boxes:
            assert box.running is not None
            request = box.running.request
            own = self._controls.without(request.inputs) if self._is_iterative else request.inputs
            request.inputs = [*own, *self._controls.tensors(request, box.slot)]
            batch.append(box.running)
        return batch, wait

    def _return(self, seat: Seat) -> Lane:
        self._sitting.discard(seat)
        if seat.called:
            seat.called = False
            seat.gate.acquire(blocking=False)  # still open if the wait had ended by itself just before the call
        lane = self._lanes.get(seat)
        if lane is None:
            lane = self._lanes[seat] = self._table.add_lane(is_leaving=seat.leaving)
        return lane

    def _call_ready(self) -> None:
        for seat in [seat for seat in self._sitting if self._lanes[seat].has_business]:
            self._call(seat)

    def _call(self, seat: Seat) -> None:
        self._sitting.discard(seat)
        seat.called = True
        seat.gate.release()

    def _arm(self) -> None:
        due = self._table.next_deadline
        if due < self._armed:
            self._armed = due
            self._alarm.set(self._expire, due)

    # Outside the lock

    def _expire(self) -> None:
        with self._lock:
            self._armed = inf
            refused = self._table.expire(time.monotonic())
            self._call_ready()
            self._arm()
        self._refuse(refused)

    def _refuse(self, refused: list[Refused]) -> None:
        for waiting, error in refused:
            self._on_refused(waiting, error)

    def _wrong(self, text: str) -> ServingError:
        return ServingError(Code.INVALID, f"inference request to model '{self._model}' {text}")
