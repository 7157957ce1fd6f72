"""A seat whose instance lives on the event loop: begins what it is free for, never waits, and says when it is over."""

import time
from collections.abc import Callable
from math import inf

import numpy as np

from backends.api.model_config import DynamicBatching, ModelConfig
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from scheduler.alarm import Alarm
from scheduler.batch import BatchPolicy, Waiting
from scheduler.dynamic import BatchScheduler
from scheduler.loop_seat import LoopSeat
from scheduler.seats import Seat


class Room:
    """An instance with room for `places` batches."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.begun: list[list[Waiting]] = []
        self.aside_acts: list[Callable[[], None]] = []

    @property
    def is_free(self) -> bool:
        return self.places > 0

    def aside(self, act: Callable[[], None]) -> None:
        self.aside_acts.append(act)

    def begin(self, batch: list[Waiting]) -> None:
        self.places -= 1
        self.begun.append(batch)


def seated(places: int, delay_us: int = 0) -> tuple[BatchScheduler, Room, Callable[[], float | None]]:
    batching = DynamicBatching(max_queue_delay_microseconds=delay_us)
    policy = BatchPolicy.of(ModelConfig("m", max_batch_size=3 if delay_us else 1, dynamic_batching=batching))
    scheduler = BatchScheduler(policy, lambda waiting, error: None, Alarm())
    room = Room(places)
    return scheduler, room, LoopSeat(scheduler, Seat(), room, room.begin)  # type: ignore[arg-type]


def submit(scheduler: BatchScheduler, number: int) -> list[Waiting]:
    waiting = [Waiting(InferenceRequest("m", "", []), queued=time.monotonic()) for _ in range(number)]
    for each in waiting:
        scheduler.submit(each)
    return waiting


def test_it_begins_what_there_is_room_for_and_the_rest_when_there_is_more() -> None:
    scheduler, room, serve = seated(places=2)
    assert serve() == inf
    waiting = submit(scheduler, 3)
    assert serve() == inf
    assert room.begun == [[each] for each in waiting[:2]]
    room.places = 1
    assert serve() == inf
    assert room.begun == [[each] for each in waiting]
    scheduler.check()


def test_it_asks_to_be_called_when_the_delay_of_a_batch_is_over() -> None:
    scheduler, room, serve = seated(places=1, delay_us=3_600_000_000)
    waiting = submit(scheduler, 2)
    due = serve()
    assert due is not None
    assert due < inf
    assert serve() == due
    assert room.begun == []
    waiting += submit(scheduler, 1)
    assert serve() == inf
    assert room.begun == [waiting]


def test_after_the_close_it_begins_what_was_queued_and_is_over() -> None:
    scheduler, room, serve = seated(places=5)
    waiting = submit(scheduler, 2)
    scheduler.close()
    assert serve() is None
    assert room.begun == [[each] for each in waiting]


def test_a_large_batch_is_begun_aside_and_nothing_before_it() -> None:
    scheduler, room, serve = seated(places=2)
    large = Waiting(InferenceRequest("m", "", [Tensor.from_numpy("IN", np.zeros(1 << 20, np.uint8))]))
    scheduler.submit(large)
    waiting = submit(scheduler, 1)
    assert serve() == inf
    assert room.begun == []
    (act,) = room.aside_acts
    act()
    assert serve() == inf
    assert room.begun == [[large], waiting]
