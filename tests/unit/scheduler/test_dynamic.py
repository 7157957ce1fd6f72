"""The queue between those who ask and the threads that run."""

import pytest

from backends.api.model_config import QueuePolicy
from backends.api.request import InferenceRequest
from scheduler.alarm import Alarm
from scheduler.batch import BatchPolicy, Waiting
from scheduler.dynamic import BatchScheduler
from scheduler.seats import Seat


class SilentAlarm(Alarm):
    """Never rings, as if its thread had not got the processor yet."""

    def set(self, callback, when) -> None:
        """Forgets it."""


def test_a_request_that_expires_as_the_last_thread_leaves_is_refused_and_not_lost():
    refused = []
    scheduler = BatchScheduler(BatchPolicy(), lambda waiting, error: refused.append(waiting), SilentAlarm())
    late = Waiting(InferenceRequest("m", "", []), timeout=0.0)
    scheduler.submit(late)
    scheduler.close()
    assert scheduler.take(Seat()) is None
    assert refused == [late]


def submitted(policy: BatchPolicy, num: int) -> tuple[BatchScheduler, list[Waiting]]:
    scheduler = BatchScheduler(policy, lambda waiting, error: None, SilentAlarm())
    items = [Waiting(InferenceRequest("m", "", [])) for _ in range(num)]
    for item in items:
        scheduler.submit(item)
    return scheduler, items


def test_a_thread_takes_more_that_waits_one_by_one_up_to_its_share():
    scheduler, items = submitted(BatchPolicy(), 10)
    seat, other = Seat(), Seat()
    assert scheduler.take(seat) == items[:1]
    assert scheduler.take_ahead(3) == items[1:4]
    assert scheduler.take_ahead(0) == []
    assert scheduler.take(other) == items[4:5]
    assert scheduler.take_ahead(100) == items[5:7]  # half of what is left
    assert scheduler.take(seat) == items[7:8]
    scheduler.check()


@pytest.mark.parametrize(
    "policy",
    [
        BatchPolicy(max_rows=8),
        BatchPolicy(levels=(QueuePolicy(max_queue_size=20),)),
        BatchPolicy(levels=(QueuePolicy(default_timeout_microseconds=10_000_000),)),
        BatchPolicy(levels=(QueuePolicy(), QueuePolicy())),
    ],
    ids=["joined", "limited", "timed", "by priority"],
)
def test_nothing_leaves_early_where_it_would_be_missed(policy: BatchPolicy):
    scheduler, _ = submitted(policy, 10)
    scheduler.take(Seat())
    assert scheduler.take_ahead(5) == []
