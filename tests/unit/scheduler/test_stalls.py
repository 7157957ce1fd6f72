"""Whether nested calls can ever end."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.stalls import is_stuck


def stuck(work: int, waits: dict[int, list[int]]) -> bool:
    return is_stuck(work, waits.get)


def test_work_that_waits_for_nothing_is_not_stuck() -> None:
    assert not stuck(1, {})


def test_work_that_waits_for_itself_is_stuck() -> None:
    assert stuck(1, {1: [1]})
    assert stuck(1, {1: [2], 2: [3], 3: [1, 2]})


def test_one_way_out_is_enough() -> None:
    assert not stuck(1, {1: [2, 3], 2: [1]})


@given(st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=4), max_size=8))
def test_stuck_is_what_is_left_when_all_that_can_end_has_ended(waits: dict[int, list[int]]) -> None:
    ended = {work for work in range(8) if work not in waits}
    while more := {work for work in waits if work not in ended and ended & set(waits[work])}:
        ended |= more
    assert all(stuck(work, waits) == (work not in ended) for work in range(8))
