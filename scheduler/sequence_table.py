"""Which sequence holds which slot, and which requests run next. Pure: no clock, no lock, no thread.

    backlog   sequences that wait for a slot, first come first served
    lane      one instance of the model, with its slots; a sequence stays on the lane that it was given
    box       the requests of one sequence id, in order; one of them at a time is in a batch

A life of a sequence goes from a request with START to one with END. An id may live again: the next life's requests queue up
in the same box and take a slot when the one before is over.
"""

from collections import deque
from itertools import count
from math import inf

from backends.api.errors import Code, ServingError
from scheduler.batch import Waiting
from scheduler.deadlines import Deadlines
from scheduler.sequence_policy import Box, Lane, SequenceId, SequencePolicy, next_boxes

Refused = tuple[Waiting, ServingError]


class SequenceTable:
    """The one owner of sequences. A request that was added leaves once: in a batch, or as refused by what is returned here."""

    def __init__(self, policy: SequencePolicy) -> None:
        self._policy = policy
        self._boxes: dict[SequenceId, Box] = {}
        self._backlog: deque[Box] = deque()
        self._lanes: dict[Lane, None] = {}
        self._numbers = count()
        self._idle: Deadlines[Box] = Deadlines()
        self._deadlines: Deadlines[Waiting] = Deadlines()
        self._is_draining = False
        self.num_waiting = 0

    @property
    def next_deadline(self) -> float:
        """When `expire` has something to do; inf for never."""
        return min(self._idle.next, self._deadlines.next)

    @property
    def num_sequences(self) -> int:
        return len(self._boxes)

    def add_lane(self, *, is_leaving: bool = False) -> Lane:
        lane = Lane(next(self._numbers), [None] * self._policy.num_slots, is_leaving)
        self._lanes[lane] = None
        self._fill()
        return lane

    def remove_lane(self, lane: Lane) -> None:
        """One with nothing in it to run."""
        del self._lanes[lane]

    def add(self, waiting: Waiting) -> bool:
        """Queue a request; whether it begins a life anew while its id's last one had not ended.

        Raises ServingError(INVALID) for one that goes on where nothing has begun.
        """
        request = waiting.request
        box = self._boxes.get(request.sequence_id)
        if not request.sequence_start and (box is None or not box.is_open):
            raise ServingError(
                Code.INVALID,
                f"inference request for sequence {request.sequence_id} to model '{self._policy.model}' must specify the "
                "START flag on the first request of the sequence",
            )
        if box is None:
            box = self._boxes[request.sequence_id] = Box(request.sequence_id)
            self._backlog.append(box)
        is_conflict = request.sequence_start and box.is_open
        self._idle.discard(box)
        box.queue.append(waiting)
        box.is_open = not request.sequence_end and not self._policy.iterative
        self.num_waiting += 1
        due = min(waiting.timeout, waiting.deadline)
        if due != inf:
            self._deadlines.add(due, waiting)
        self._fill()
        return is_conflict

    def next_batch(self, lane: Lane, now: float) -> tuple[list[Box], float]:
        """The boxes whose requests run now, each its `running`, by slot or by age; else how long to wait. `lane` is not running."""
        ready = lane.ready
        if not ready:
            return [], inf
        chosen, wait = next_boxes(ready, self._policy, now, is_draining=self._is_draining)
        for box in chosen:
            box.running = box.queue.popleft()
            self._leave(box.running)
        return chosen, wait

    def finished(self, lane: Lane, now: float) -> list[Refused]:
        """What ran in `lane` has run, or at least the next may come."""
        refused: list[Refused] = []
        for box in lane.slots:
            if box is None or box.running is None:
                continue
            request = box.running.request
            if request.stream.cancelled and not request.times.compute_start and not request.sequence_end:
                # it was given up before it ran: those after it must not run on a state that lacks it
                if box.queue and not box.queue[0].request.sequence_start:
                    refused += self.drop(box.queue[0])
                box.is_over = True
            waiting, box.running = box.running, None
            if waiting.again:
                refused += self._run_again(box, waiting)
            elif request.sequence_end or box.is_over or self._policy.iterative:
                self._release(box)
            elif not box.queue:
                self._rest(box, now)
        self._fill()
        return refused

    def drop(self, waiting: Waiting) -> list[Refused]:
        """Take out a request that waits, and with it the life it belongs to; [] if it is not here."""
        return [(item, self._ended(item, waiting)) for item in self._drop_life(waiting)]

    def lose(self, lane: Lane) -> list[Refused]:
        """The lives that have begun in `lane` are over: what the model knew of them is gone."""
        refused: list[Refused] = []
        for box in [box for box in lane.slots if box is not None]:
            if box.queue and not box.queue[0].request.sequence_start:
                refused += [(item, self._lost(item)) for item in self._drop_life(box.queue[0])]
            elif box.running is not None:
                box.is_over = True
                box.is_open = box.is_open and bool(box.queue)
            elif not box.queue:
                self._release(box)
        self._fill()
        return refused

    def _drop_life(self, waiting: Waiting) -> list[Waiting]:
        box = self._boxes.get(waiting.request.sequence_id)
        if box is None or waiting not in box.queue:
            return []
        items = list(box.queue)
        start, stop = _life(items, items.index(waiting))
        box.queue = deque(items[:start] + items[stop:])
        for item in items[start:stop]:
            self._leave(item)
        if stop == len(items):
            box.is_open = False
        has_begun = start == 0 and not items[0].request.sequence_start
        if box.running is not None:
            box.is_over = box.is_over or has_begun
        elif has_begun or not box.queue:
            self._release(box)
        self._fill()
        return items[start:stop]

    def drop_all(self) -> list[Waiting]:
        """Every life is over; what waited."""
        dropped = [item for box in self._boxes.values() for item in box.queue]
        for item in dropped:
            self._leave(item)
        for box in list(self._boxes.values()):
            box.queue.clear()
            box.is_open = False
            box.is_over = True
            if box.running is None:
                self._release(box)
        return dropped

    def expire(self, now: float) -> list[Refused]:
        """Free the slots of idle sequences, and refuse the lives of requests that have waited too long."""
        for box in self._idle.pop_due(now):
            self._release(box)
        refused: list[Refused] = []
        for waiting in self._deadlines.pop_due(now):
            refused += [
                (item, _too_late(item, waiting, now)) for item, _ in self.drop(waiting)
            ]  # one of the same life that was due too is gone by then
        self._fill()
        return refused

    def drain(self) -> None:
        """Nothing new comes: whoever rests would rest for ever."""
        self._is_draining = True
        for box in list(self._boxes.values()):
            if not box.queue and box.running is None:
                self._release(box)
        self._fill()

    def check(self) -> None:
        """Recount (for tests)."""
        held = [box for lane in self._lanes for box in lane.slots if box is not None]
        assert len(held) == len(set(held)), "two slots"
        for box in self._boxes.values():
            assert (box in held) != (box in self._backlog), "neither waits nor has a slot"
            assert box.lane is None or box.lane.slots[box.slot] is box
            assert box.queue or box.running or not self._is_draining
            assert box.running is None or box.lane is not None
        assert {*held, *self._backlog} == {*self._boxes.values()}
        assert sum(len(box.queue) for box in self._boxes.values()) == self.num_waiting
        assert not self._backlog or not any(lane.num_free for lane in self._lanes)

    def _run_again(self, box: Box, waiting: Waiting) -> list[Refused]:
        """Its queue time-out was for its first run; its deadline holds on."""
        waiting.again = False
        if box.is_over:
            self._release(box)
            return [(waiting, self._lost(waiting))]
        waiting.request.sequence_start = False
        waiting.timeout = inf
        box.queue.appendleft(waiting)
        self.num_waiting += 1
        if waiting.deadline != inf:
            self._deadlines.add(waiting.deadline, waiting)
        return []

    def _rest(self, box: Box, now: float) -> None:
        if self._is_draining:
            self._release(box)
        else:
            self._idle.add(now + self._policy.idle, box)

    def _release(self, box: Box) -> None:
        """The life in the slot is over, or never began. The next one of the same id waits for a slot like all others."""
        self._idle.discard(box)
        box.is_over = False
        if box.lane is not None:
            box.lane.slots[box.slot] = None
            box.lane = None
        elif box in self._backlog:
            self._backlog.remove(box)
        if box.queue:
            self._backlog.append(box)
        else:
            del self._boxes[box.id]

    def _fill(self) -> None:
        """Free slots go to those who have waited longest, on the lane with the most room."""
        while self._backlog:
            lane = max(self._lanes, key=lambda lane: (lane.num_free, -lane.number), default=None)
            if lane is None or not lane.num_free:
                return
            box = self._backlog.popleft()
            box.lane, box.slot = lane, lane.slots.index(None)
            lane.slots[box.slot] = box

    def _leave(self, waiting: Waiting) -> None:
        self.num_waiting -= 1
        self._deadlines.discard(waiting)

    def _ended(self, item: Waiting, cause: Waiting) -> ServingError:
        request = item.request
        which = "it" if item is cause else "another of its requests"
        text = f"sequence {request.sequence_id} of model '{self._policy.model}' is over: {which} was cancelled"
        return ServingError(Code.CANCELLED, f"{request.label} {text}")

    def _lost(self, waiting: Waiting) -> ServingError:
        request = waiting.request
        text = f"sequence {request.sequence_id} of model '{self._policy.model}' is over: its instance has ended"
        return ServingError(Code.UNAVAILABLE, f"{request.label} {text}", reason="process_ended")


def _life(items: list[Waiting], at: int) -> tuple[int, int]:
    """Where the life of item `at` starts and stops in a queue."""
    start = at
    while start > 0 and not items[start].request.sequence_start:
        start -= 1
    stop = at + 1
    while stop < len(items) and not items[stop - 1].request.sequence_end and not items[stop].request.sequence_start:
        stop += 1
    return start, stop


def _too_late(item: Waiting, cause: Waiting, now: float) -> ServingError:
    if item is cause and item.deadline <= now:
        return ServingError(
            Code.DEADLINE,
            f"{item.request.label} the deadline passed while the request waited for model '{item.request.model}'",
            reason="deadline",
        )
    return ServingError(Code.UNAVAILABLE, "timeout of the corresponding sequence has been expired", reason="timeout")
