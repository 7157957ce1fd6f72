"""Which sequence holds which slot and what runs next, decided with the time given."""

from collections import defaultdict
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from scheduler.batch import BatchPolicy, Waiting
from scheduler.sequence_policy import Lane, SequencePolicy
from scheduler.sequence_table import SequenceTable

DIRECT = SequencePolicy("seq", num_slots=2, idle=1.0, max_delay=0.0)
OLDEST = replace(DIRECT, num_slots=3, batching=BatchPolicy(max_rows=2, preferred=frozenset({2})))


def ask(sequence: int, flags: str = "", *, at: float = 0.0, key: str = "", **times: float) -> Waiting:
    """`flags`: S for START, E for END."""
    request = InferenceRequest(
        "seq", "", [], sequence_id=sequence, sequence_start="S" in flags, sequence_end="E" in flags
    )
    return Waiting(request, key=key, queued=at, **times)


def run(table: SequenceTable, lane: Lane, now: float = 0.0) -> list[int]:
    """The sequences of the next batch, by slot or by age; it then has run."""
    boxes, _ = table.next_batch(lane, now)
    for box in boxes:
        assert box.running is not None
        box.running.request.times.compute_start = 1.0
    assert table.finished(lane, now) == []
    table.check()
    return [int(box.id) for box in boxes]


@pytest.fixture(params=[DIRECT, OLDEST], ids=["direct", "oldest"])
def policy(request: pytest.FixtureRequest) -> SequencePolicy:
    return request.param  # type: ignore[no-any-return]


def test_one_request_of_a_sequence_runs_at_a_time_in_the_order_sent(policy: SequencePolicy) -> None:
    table = SequenceTable(policy)
    lane = table.add_lane()
    for flags in ("S", "", "E"):
        table.add(ask(7, flags))
    assert [run(table, lane) for _ in range(4)] == [[7], [7], [7], []]
    assert (table.num_sequences, table.num_waiting) == (0, 0)


def test_a_request_that_goes_on_where_nothing_began_is_refused(policy: SequencePolicy) -> None:
    table = SequenceTable(policy)
    with pytest.raises(ServingError) as refused:
        table.add(ask(7))
    assert refused.value.code is Code.INVALID
    assert refused.value.message == (
        "inference request for sequence 7 to model 'seq' must specify the START flag on the first request of the sequence"
    )
    table.add(ask(7, "SE"))
    with pytest.raises(ServingError, match="must specify the START flag"):
        table.add(ask(7, "E"))  # its END is queued already
    assert table.num_waiting == 1


def test_sequences_without_a_slot_wait_their_turn() -> None:
    table = SequenceTable(DIRECT)
    lane = table.add_lane()
    for sequence in (1, 2, 3, 4):
        table.add(ask(sequence, "S"))
    assert run(table, lane) == [1, 2]
    assert run(table, lane) == []
    table.add(ask(1, "E"))
    table.add(ask(2))
    assert run(table, lane) == [1, 2]
    assert run(table, lane) == [3]  # in the slot of 1
    assert [box.id for box in lane.slots if box] == [3, 2]


def test_new_sequences_go_to_the_lane_with_the_most_room_and_stay_there() -> None:
    table = SequenceTable(DIRECT)
    lanes = [table.add_lane(), table.add_lane()]
    for sequence in (1, 2, 3):
        table.add(ask(sequence, "S"))
    assert [run(table, lane) for lane in lanes] == [[1, 3], [2]]
    for sequence in (3, 2, 1):
        table.add(ask(sequence))
    assert [run(table, lane) for lane in lanes] == [[1, 3], [2]]


def test_the_oldest_requests_share_a_batch_whatever_their_slots() -> None:
    table = SequenceTable(OLDEST)
    lane = table.add_lane()
    for place, sequence in enumerate((1, 2, 3)):
        table.add(ask(sequence, "S", at=float(place)))
    assert run(table, lane) == [1, 2]
    table.add(ask(1, at=3.0))
    assert run(table, lane) == [3, 1]


def test_unlike_shapes_do_not_share_a_batch(policy: SequencePolicy) -> None:
    table = SequenceTable(policy)
    lane = table.add_lane()
    table.add(ask(1, "S", at=0.0, key="wide"))
    table.add(ask(2, "S", at=1.0, key="tall"))
    assert [run(table, lane), run(table, lane)] == [[1], [2]]


def test_a_batch_of_few_slots_waits_for_others_no_longer_than_the_delay() -> None:
    table = SequenceTable(replace(DIRECT, max_delay=0.5, min_utilization=1.0))
    lane = table.add_lane()
    table.add(ask(1, "S", at=10.0))
    assert table.next_batch(lane, 10.2) == ([], pytest.approx(0.3))
    table.add(ask(2, "SE", at=10.3))
    assert run(table, lane, 10.3) == [1, 2]
    table.add(ask(1, at=11.0))
    assert run(table, lane, 11.5) == [1]


def test_an_idle_sequence_loses_its_slot_and_must_start_again() -> None:
    table = SequenceTable(DIRECT)
    lane = table.add_lane()
    for sequence in (1, 2, 3):
        table.add(ask(sequence, "S"))
    assert run(table, lane, now=5.0) == [1, 2]
    table.add(ask(2))
    assert table.next_deadline == 6.0
    assert table.expire(6.0) == []
    table.check()
    assert run(table, lane, now=6.0) == [3, 2]
    with pytest.raises(ServingError, match="START"):
        table.add(ask(1))


def test_the_idle_clock_stands_still_while_requests_wait_or_run(policy: SequencePolicy) -> None:
    table = SequenceTable(policy)
    lane = table.add_lane()
    table.add(ask(1, "S"))
    assert table.next_deadline == inf
    table.next_batch(lane, 0.0)
    assert table.next_deadline == inf
    table.add(ask(1))
    table.finished(lane, 50.0)
    assert table.next_deadline == inf
    assert run(table, lane, 60.0) == [1]
    assert table.next_deadline == 61.0


def test_an_id_that_starts_again_goes_on_in_its_slot() -> None:
    table = SequenceTable(DIRECT)
    lane = table.add_lane()
    assert table.add(ask(1, "S")) is False
    assert table.add(ask(1, "S")) is True  # a conflict: no END before
    assert [run(table, lane), run(table, lane), run(table, lane)] == [[1], [1], []]
    assert table.num_sequences == 1


def test_the_next_life_of_an_id_waits_behind_those_who_waited_before() -> None:
    table = SequenceTable(replace(DIRECT, num_slots=1))
    lane = table.add_lane()
    table.add(ask(1, "SE"))
    table.add(ask(2, "SE"))
    table.add(ask(1, "SE"))
    assert [run(table, lane) for _ in range(4)] == [[1], [2], [1], []]


def test_a_request_given_up_takes_its_sequence_with_it_and_frees_the_slot(policy: SequencePolicy) -> None:
    table = SequenceTable(policy)
    lane = table.add_lane()
    table.add(ask(1, "S"))
    assert run(table, lane) == [1]
    second, third, again = ask(1), ask(1, "E"), ask(1, "SE")
    for waiting in (second, third, again):
        table.add(waiting)
    refused = dict(table.drop(third))
    table.check()
    assert list(refused) == [second, third]
    assert refused[second].code is Code.CANCELLED
    assert "sequence 1 of model 'seq' is over: another of its requests was cancelled" in refused[second].message
    assert run(table, lane) == [1]  # the life after it is not touched
    assert table.num_sequences == 0
    assert table.drop(third) == []


def test_a_sequence_given_up_while_it_runs_keeps_its_slot_until_it_has_run() -> None:
    table = SequenceTable(replace(DIRECT, num_slots=1))
    lane = table.add_lane()
    table.add(ask(1, "S"))
    late = ask(1)
    table.add(late)
    table.add(ask(2, "SE"))
    table.next_batch(lane, 0.0)
    table.drop(late)
    assert table.next_batch(lane, 0.0)[0] == []
    table.check()
    table.finished(lane, 0.0)
    assert run(table, lane) == [2]
    with pytest.raises(ServingError, match="START"):
        table.add(ask(1))


def test_a_start_that_was_cancelled_before_it_ran_ends_the_sequence(policy: SequencePolicy) -> None:
    table = SequenceTable(policy)
    lane = table.add_lane()
    first, second = ask(1, "S"), ask(1)
    table.add(first)
    table.add(second)
    table.next_batch(lane, 0.0)
    first.request.stream.cancel()
    assert [waiting for waiting, _ in table.finished(lane, 0.0)] == [second]
    table.check()
    assert (table.num_sequences, table.num_waiting) == (0, 0)


def test_a_request_that_waits_too_long_is_refused_with_its_sequence() -> None:
    table = SequenceTable(replace(DIRECT, num_slots=1))
    lane = table.add_lane()
    table.add(ask(1, "S"))
    first, second, third = ask(2, "S", timeout=3.0), ask(2), ask(3, "S", deadline=4.0)
    for waiting in (first, second, third):
        table.add(waiting)
    assert table.next_deadline == 3.0
    errors = [(waiting, error.code, error.message) for waiting, error in table.expire(3.0)]
    text = "timeout of the corresponding sequence has been expired"
    assert errors == [(first, Code.UNAVAILABLE, text), (second, Code.UNAVAILABLE, text)]
    ((waiting, error),) = table.expire(4.0)
    assert (waiting, error.code) == (third, Code.DEADLINE)
    assert run(table, lane) == [1]
    table.check()


def test_draining_frees_the_slots_of_those_who_rest_so_that_all_who_wait_are_answered() -> None:
    table = SequenceTable(replace(DIRECT, num_slots=1, max_delay=100.0, min_utilization=1.0))
    lane = table.add_lane()
    table.add(ask(1, "S", at=-100.0))
    assert run(table, lane) == [1]
    for sequence in (2, 3):
        table.add(ask(sequence, "S"))
    table.drain()
    assert [run(table, lane), run(table, lane), run(table, lane)] == [[2], [3], []]
    assert table.num_sequences == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "run", "run", "drop", "expire", "lose"]),
        st.integers(1, 5),
        st.integers(0, 3),
    ),
    max_size=120,
)


def test_what_was_begun_in_a_lane_that_is_lost_is_over_and_the_rest_goes_on() -> None:
    table = SequenceTable(DIRECT)
    lost, other = table.add_lane(), table.add_lane()
    for sequence in (1, 2, 3, 4):
        table.add(ask(sequence, "S"))
    assert (run(table, lost), run(table, other)) == ([1, 3], [2, 4])
    waits, anew = ask(1), ask(1, "S")
    table.add(waits)
    table.add(anew)
    ((refused, error),) = table.lose(lost)
    assert (refused, error.code, error.reason) == (waits, Code.UNAVAILABLE, "process_ended")
    with pytest.raises(ServingError, match="must specify the START flag"):
        table.add(ask(3))
    table.add(ask(2))
    assert (run(table, lost), run(table, other)) == ([1], [2])  # 1 is `anew`
    assert table.num_waiting == 0


def test_what_runs_in_a_lane_that_is_lost_is_the_last_of_its_life() -> None:
    table = SequenceTable(DIRECT)
    lane = table.add_lane()
    table.add(ask(1, "S"))
    table.next_batch(lane, 0.0)
    assert table.lose(lane) == []
    with pytest.raises(ServingError, match="must specify the START flag"):
        table.add(ask(1))
    assert table.finished(lane, 0.0) == []
    assert table.num_sequences == 0


ITERATIVE = replace(OLDEST, iterative=True)


def test_a_request_that_is_to_run_again_keeps_its_slot_and_starts_no_more() -> None:
    table = SequenceTable(replace(ITERATIVE, num_slots=1))
    lane = table.add_lane()
    long, short = ask(1, "S"), ask(2, "S")
    table.add(long)
    table.add(short)
    ran = []
    for again in (True, True, False, False):
        ((box,), _) = table.next_batch(lane, 0.0)
        assert box.running is not None
        ran.append((box.running, box.running.request.sequence_start))
        box.running.again = again
        assert table.finished(lane, 0.0) == []
        table.check()
    assert ran == [(long, True), (long, False), (long, False), (short, True)]
    assert table.num_sequences == 0


def test_a_queue_time_out_holds_for_the_first_run_and_a_deadline_for_all() -> None:
    table = SequenceTable(ITERATIVE)
    lane = table.add_lane()
    waiting = ask(1, "S", timeout=1.0, deadline=5.0)
    table.add(waiting)
    ((box,), _) = table.next_batch(lane, 0.0)
    assert box.running is waiting
    waiting.again = True
    table.finished(lane, 0.0)
    assert table.expire(2.0) == []
    ((late, error),) = table.expire(5.0)
    assert (late, error.code) == (waiting, Code.DEADLINE)
    assert table.num_sequences == 0


def test_a_request_that_is_to_run_again_where_all_is_lost_is_refused() -> None:
    table = SequenceTable(ITERATIVE)
    lane = table.add_lane()
    waiting = ask(1, "S")
    table.add(waiting)
    table.next_batch(lane, 0.0)
    waiting.again = True
    assert table.drop_all() == []
    ((refused, error),) = table.finished(lane, 0.0)
    assert (refused, error.reason) == (waiting, "process_ended")
    assert (table.num_sequences, table.num_waiting) == (0, 0)


@given(steps=STEPS, is_direct=st.booleans())
def test_whatever_happens_each_request_leaves_once_in_order_and_no_slot_is_lost(
    steps: list[tuple[str, int, int]], is_direct: bool
) -> None:
    table = SequenceTable(DIRECT if is_direct else OLDEST)
    lanes = [table.add_lane(), table.add_lane()]
    now, added = 0.0, defaultdict[int, list[Waiting]](list)
    left = list[Waiting]()

    def step(lane: Lane) -> None:
        for box in table.next_batch(lane, now)[0]:
            assert box.running is not None
            ran = box.running
            assert next(each for each in added[int(box.id)] if each not in left) is ran, "out of order"
            ran.request.times.compute_start = 1.0
            left.append(ran)
        table.finished(lane, now)

    for act, number, flags in steps:
        now += 0.3
        waiting = ask(number, ("", "S", "E", "SE")[flags], at=now)
        if act == "ask":
            try:
                table.add(waiting)
            except ServingError:
                continue
            added[number].append(waiting)
        elif act == "run":
            step(lanes[number % 2])
        elif act == "lose":
            left += [each for each, _ in table.lose(lanes[number % 2])]
        elif act == "drop":
            waits = [each for each in added[number] if each not in left]
            left += [each for each, _ in table.drop(waits[0])] if waits else []
        else:
            table.expire(now)
        table.check()
    table.drain()
    while table.num_waiting:
        for lane in lanes:
            step(lane)
        table.check()
    everything = [waiting for sequence in added.values() for waiting in sequence]
    assert len(left) == len(everything) == len(set(left))
    assert table.num_sequences == 0
