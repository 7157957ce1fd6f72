"""The forming rule, as a function of a queue and a time."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.model_config import DynamicBatching, ModelConfig, QueuePolicy, TimeoutAction
from backends.api.request import InferenceRequest
from scheduler.batch import BatchPolicy, BatchQueue, Waiting, next_batch, refusal

DELAYED = BatchPolicy(max_rows=8, preferred=frozenset({4, 8}), max_delay=0.01)
EAGER = BatchPolicy(max_rows=8, preferred=frozenset({8}))


def wait(rows: int = 1, **fields: object) -> Waiting:
    return Waiting(InferenceRequest("m", "", []), rows=rows, **fields)  # type: ignore[arg-type]


def queue_of(policy: BatchPolicy, *items: Waiting) -> BatchQueue:
    queue = BatchQueue(policy)
    for item in items:
        queue.add(item)
    return queue


def rows_of(batch: list[Waiting]) -> list[int]:
    return [item.rows for item in batch]


def test_an_empty_queue_gives_nothing_and_waits_for_ever():
    assert next_batch(BatchQueue(EAGER), EAGER, 0.0) == ([], [], inf)


def test_without_delay_everything_that_fits_goes_at_once():
    queue = queue_of(EAGER, wait(3), wait(4), wait(2))
    batch, _, pause = next_batch(queue, EAGER, 0.0, busy=True)
    assert (rows_of(batch), pause) == ([3, 4], 0.0)
    assert len(queue) == 1


def test_a_request_that_does_not_fit_is_not_overtaken_by_one_that_would():
    batch, _, _ = next_batch(queue_of(EAGER, wait(6), wait(3), wait(1)), EAGER, 0.0)
    assert rows_of(batch) == [6]


def test_two_requests_wait_for_the_delay_of_the_older():
    queue = queue_of(DELAYED, wait(queued=1.0), wait(queued=1.004))
    assert next_batch(queue, DELAYED, 1.006, busy=True)[2] == pytest.approx(0.004)
    assert len(next_batch(queue, DELAYED, 1.0101, busy=True)[0]) == 2


def test_a_lone_request_waits_only_while_an_instance_is_busy():
    queue = queue_of(DELAYED, wait(queued=1.0))
    assert next_batch(queue, DELAYED, 1.0, busy=True)[0] == []
    assert len(next_batch(queue, DELAYED, 1.0, busy=False)[0]) == 1


def test_the_largest_preferred_size_within_reach_is_sent_at_once():
    batch, _, _ = next_batch(queue_of(DELAYED, *(wait() for _ in range(7))), DELAYED, 0.0, busy=True)
    assert len(batch) == 4
    batch, _, _ = next_batch(queue_of(DELAYED, *(wait() for _ in range(9))), DELAYED, 0.0, busy=True)
    assert len(batch) == 8


def test_past_the_largest_preferred_size_nothing_is_waited_for():
    policy = BatchPolicy(max_rows=8, preferred=frozenset({4}), max_delay=1.0)
    assert rows_of(next_batch(queue_of(policy, wait(3), wait(3)), policy, 0.0, busy=True)[0]) == [3, 3]


def test_a_batch_that_cannot_grow_does_not_wait():
    assert rows_of(next_batch(queue_of(DELAYED, wait(3), wait(6)), DELAYED, 0.0, busy=True)[0]) == [3]
    unlike = queue_of(DELAYED, wait(key="a"), wait(key="b"))
    assert len(next_batch(unlike, DELAYED, 0.0, busy=True)[0]) == 1


def test_without_batching_each_request_goes_as_it_came():
    policy = BatchPolicy.of(ModelConfig("m", max_batch_size=8))
    queue = queue_of(policy, wait(5), wait(1))
    assert rows_of(next_batch(queue, policy, 0.0)[0]) == [5]
    assert rows_of(next_batch(queue, policy, 0.0)[0]) == [1]


def test_higher_levels_go_first_and_share_the_batch():
    policy = BatchPolicy(max_rows=2, levels=(QueuePolicy(), QueuePolicy()))
    low, high, later = wait(level=2), wait(level=1), wait(level=1)
    queue = queue_of(policy, low, high)
    assert next_batch(queue, policy, 0.0)[0] == [high, low]
    queue = queue_of(policy, low, high, later)
    assert next_batch(queue, policy, 0.0)[0] == [high, later]


def test_a_timed_out_request_is_refused_at_its_time_and_not_before():
    queue = queue_of(EAGER, wait(timeout=2.0))
    assert queue.next_deadline == 2.0
    assert queue.expire(1.999) == []
    batch, refused, _ = next_batch(queue, EAGER, 2.0)
    assert (len(batch), len(refused)) == (0, 1)
    assert refusal(refused[0], 2.0).message == "Request timeout expired"


def test_under_delay_a_timed_out_request_runs_after_the_rest_of_its_level():
    policy = BatchPolicy(
        max_rows=1, levels=(QueuePolicy(timeout_action=TimeoutAction.DELAY), QueuePolicy(TimeoutAction.DELAY))
    )
    late, fresh, low = wait(timeout=1.0), wait(timeout=5.0), wait(level=2)
    queue = queue_of(policy, late, fresh, low)
    order = [next_batch(queue, policy, 1.5)[0][0] for _ in range(3)]
    assert order == [fresh, late, low]


def test_a_deadline_is_final_even_under_delay():
    policy = BatchPolicy(max_rows=1, levels=(QueuePolicy(timeout_action=TimeoutAction.DELAY),))
    queue = queue_of(policy, wait(timeout=1.0, deadline=2.0))
    assert queue.expire(1.0) == []
    assert queue.next_deadline == 2.0
    (refused,) = queue.expire(2.0)
    assert refusal(refused, 2.0).code.name == "DEADLINE"


def test_priorities_outside_the_levels_get_the_default():
    policy = BatchPolicy.of(
        ModelConfig("m", dynamic_batching=DynamicBatching(priority_levels=3, default_priority_level=2))
    )
    assert [policy.level_of(priority) for priority in (0, 1, 3, 4)] == [2, 1, 3, 2]


@pytest.mark.parametrize(
    ("default", "override", "asked", "seconds"),
    [
        (0, False, 0, inf),
        (500, False, 0, 0.0005),
        (500, False, 100, 0.0005),
        (500, True, 100, 0.0001),
        (500, True, 900, 0.0005),
        (0, False, 100, 0.0001),
    ],
)
def test_a_request_may_only_shorten_its_levels_timeout_and_only_where_allowed(default, override, asked, seconds):
    policy = BatchPolicy(levels=(QueuePolicy(TimeoutAction.REJECT, default, override),))
    assert policy.timeout_of(1, asked) == pytest.approx(seconds)


items = st.builds(
    wait,
    rows=st.integers(1, 8),
    key=st.sampled_from(["a", "b"]),
    level=st.integers(1, 2),
    queued=st.floats(0, 1),
    timeout=st.one_of(st.just(inf), st.floats(1, 2)),
    deadline=st.one_of(st.just(inf), st.floats(1, 2)),
)


@given(
    waiting=st.lists(items, max_size=30),
    preferred=st.sets(st.integers(1, 8), min_size=1),
    delay=st.sampled_from([0.0, 0.5]),
    actions=st.tuples(st.sampled_from(TimeoutAction), st.sampled_from(TimeoutAction)),
    cancelled=st.sets(st.integers(0, 29)),
)
def test_every_request_leaves_once_no_batch_is_too_big_or_mixed_and_nobody_is_overtaken(
    waiting, preferred, delay, actions, cancelled
):
    policy = BatchPolicy(
        max_rows=8,
        preferred=frozenset(preferred),
        max_delay=delay,
        levels=tuple(QueuePolicy(timeout_action=action) for action in actions),
    )
    queue = queue_of(policy, *waiting)
    left = [item for index, item in enumerate(waiting) if index in cancelled and queue.remove(item)]
    patient = {item for item in waiting if item.timeout == inf}
    now, ran = 1.0, []
    while len(queue):
        front = next(iter(queue))
        is_due = min(front.timeout, front.deadline) <= now
        batch, refused, pause = next_batch(queue, policy, now, busy=True)
        assert all(min(item.timeout, item.deadline) <= now for item in refused)
        if batch:
            assert sum(item.rows for item in batch) <= 8
            assert len({item.key for item in batch}) == 1
            assert front is batch[0] or is_due
        else:
            assert pause > 0
            now += min(pause, 0.1)
        left += refused + batch
        ran += batch
    assert len(left) == len(set(left)) == len(waiting)
    assert queue.num_rows == 0
    # a batch never waits past its delay: everything is gone one delay after it began, batch by batch
    assert now <= 1.0 + delay + 0.1
    for level in (1, 2):
        order = [waiting.index(item) for item in ran if item.level == level and item in patient]
        assert order == sorted(order)
