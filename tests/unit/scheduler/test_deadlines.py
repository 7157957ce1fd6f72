from math import inf

from hypothesis import given
from hypothesis import strategies as st

from scheduler.deadlines import Deadlines


def test_items_come_due_in_order_of_time():
    deadlines: Deadlines[str] = Deadlines()
    for time, item in ((3.0, "c"), (1.0, "a"), (2.0, "b")):
        deadlines.add(time, item)
    assert deadlines.next == 1.0
    assert deadlines.pop_due(2.0) == ["a", "b"]
    assert deadlines.next == 3.0


def test_many_discarded_items_leave_nothing_behind():
    deadlines: Deadlines[int] = Deadlines()
    for item in range(10_000):
        deadlines.add(1e9, item)
        deadlines.discard(item)
    assert len(deadlines) == 0
    assert len(deadlines._heap) < 200
    assert deadlines.next == inf


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans())), st.floats(0, 10))
def test_what_is_due_is_what_was_added_and_not_discarded(entries, now):
    deadlines: Deadlines[int] = Deadlines()
    for item, (time, _) in enumerate(entries):
        deadlines.add(time, item)
    for item, (_, gone) in enumerate(entries):
        if gone:
            deadlines.discard(item)
    expected = sorted((time, item) for item, (time, gone) in enumerate(entries) if not gone and time <= now)
    assert deadlines.pop_due(now) == [item for _, item in expected]
