"""The team: every item once, tasks in order, helpers that sleep and wake, an end."""

import gc
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from numba import cfunc

from backends.lm.cpu.features import cpu_features
from backends.lm.cpu.memory import atomic_add, load_int
from backends.lm.cpu.team import TASK_SIGNATURE, Tape, Team

pytestmark = pytest.mark.skipif(not cpu_features().avx512, reason="x86 atomics")


@cfunc(TASK_SIGNATURE)
def count_items(args: int, item: int) -> int:
    """args: number of items, then a counter for each."""
    if item < 0:
        return load_int(args)
    atomic_add(args + 8 + 8 * item, 1)
    return 0


@cfunc(TASK_SIGNATURE)
def sum_items(args: int, item: int) -> int:
    """args: address of the counters of `count_items`, a sum: adds up all counters from each of 3 items."""
    if item < 0:
        return 3
    counters = load_int(args)
    total = 0
    for index in range(load_int(counters)):
        total += load_int(counters + 8 + 8 * index)
    atomic_add(args + 8, total)
    return 0


@pytest.fixture(params=[1, 2, 4])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    made = Team(request.param)
    yield made
    made.close()


def counters(items: int) -> np.ndarray:
    args = np.zeros(items + 1, dtype=np.int64)
    args[0] = items
    return args


@pytest.mark.parametrize("items", [0, 1, 2, 7, 1000])
def test_every_item_is_done_exactly_once(team: Team, items: int) -> None:
    args = counters(items)
    for _ in range(50):
        team.run(Tape([(count_items, args)]))
    assert args[1:].tolist() == [50] * items


def test_a_task_sees_all_of_the_task_before_it(team: Team) -> None:
    args = counters(64)
    sums = np.array([args.ctypes.data, 0], dtype=np.int64)
    tape = Tape([(count_items, args), (sum_items, sums)])
    for run in range(1, 201):
        sums[1] = 0
        team.run(tape)
        assert sums[1] == 3 * 64 * run


def test_helpers_that_fell_asleep_do_not_stop_the_next_run(team: Team) -> None:
    args = counters(100)
    tape = Tape([(count_items, args)])
    for _ in range(3):
        team.run(tape)
        deadline = time.monotonic() + 10
        while team.num_asleep < team.num_threads - 1:
            assert time.monotonic() < deadline
    team.run(tape)
    assert args[1:].tolist() == [4] * 100


def test_closing_ends_the_threads_and_work_goes_on_alone() -> None:
    before = threading.active_count()
    team = Team(3)
    assert threading.active_count() == before + 2
    team.close()
    assert threading.active_count() == before
    args = counters(10)
    team.run(Tape([(count_items, args)]))
    assert args[1:].tolist() == [1] * 10


def test_threads_end_when_the_team_is_forgotten() -> None:
    helpers = Team(3)._helpers[:]
    gc.collect()
    for helper in helpers:
        helper.join(10)
    assert not any(helper.is_alive() for helper in helpers)


def test_arguments_may_change_between_runs(team: Team) -> None:
    args = counters(10)
    tape = Tape([(count_items, args)])
    team.run(tape)
    args[0] = 4
    team.run(tape)
    assert args[1:].tolist() == [2] * 4 + [1] * 6
