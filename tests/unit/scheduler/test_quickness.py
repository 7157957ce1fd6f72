"""Who may run on its caller's thread: only a model that has long been quick."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.statistics import Failure
from scheduler.quickness import QUICK, Quickness
from tests.unit.scheduler.tensor_fakes import Gate, answer, ask, config, echo, serving

QUICKLY, SLOWLY, WAITING = (QUICK, QUICK), (1.0, 1.0), (1.0, 0.0)  # wall and processor seconds


def judge(*executions: tuple[float, float]) -> Quickness:
    quickness = Quickness()
    for wall, processor in executions:
        quickness.note(wall, processor, on_caller=False)
    return quickness


def test_trust_takes_many_quick_executions_and_bears_one_outlier():
    assert not judge(*[QUICKLY] * 15).is_quick
    assert judge(*[QUICKLY] * 16).is_quick
    assert judge(*[QUICKLY] * 15, SLOWLY).is_quick
    assert not judge(*[QUICKLY] * 15, SLOWLY, SLOWLY).is_quick


def test_waiting_for_a_busy_machine_does_not_speak_against_a_model():
    assert judge(*[QUICKLY, WAITING, WAITING] * 6).is_quick


def test_a_model_that_sleeps_is_not_quick_though_it_uses_no_processor():
    assert not judge(*[WAITING] * 50).is_quick


def test_one_slow_execution_on_a_callers_thread_ends_the_trust_for_long():
    quickness = judge(*[QUICKLY] * 16)
    quickness.note(0.05, 0.0, on_caller=True)
    for _ in range(900):
        quickness.note(*QUICKLY, on_caller=False)
        assert not quickness.is_quick
    for _ in range(200):
        quickness.note(*QUICKLY, on_caller=False)
    assert quickness.is_quick


slow_walls = st.floats(2 * QUICK, 1.0)


@given(st.lists(st.tuples(slow_walls, st.floats(0, 1.0)), max_size=50), st.booleans())
def test_a_slow_model_is_never_trusted(executions, on_caller):
    quickness = Quickness()
    for wall, processor in executions:
        quickness.note(wall, min(wall, processor), on_caller=on_caller)
        assert not quickness.is_quick


class Whereabouts:
    """An `echo` that remembers on which threads it ran, and can be told to take its time."""

    def __init__(self) -> None:
        self.threads: list[int] = []
        self.gate: Gate | None = None

    def __call__(self, inputs, outputs):
        self.threads.append(threading.get_ident())
        return echo(inputs, outputs) if self.gate is None else self.gate(inputs, outputs)


@pytest.fixture
def certainly_quick(monkeypatch):
    """Every execution counts as quick, however busy the machine of the test."""
    monkeypatch.setattr("scheduler.quickness.QUICK", 1e9)


@pytest.mark.usefixtures("certainly_quick")
async def test_lone_requests_of_a_quick_model_run_where_they_are_asked_and_are_counted_alike():
    model_function = Whereabouts()
    async with serving(model_function, is_steady=True) as model:
        for value in range(40):
            request = ask(value)
            model.infer(request)
            assert answer(request) == [value]
        assert threading.get_ident() not in model_function.threads[:16]
        assert set(model_function.threads[-10:]) == {threading.get_ident()}
        counts = model.statistics.snapshot()
        assert (counts.success.count, counts.queue.count, counts.execution_count) == (40, 40, 40)
        gone = ask(1)
        gone.stream.cancel()
        model.infer(gone)
        assert model.statistics.snapshot().failures[Failure.CANCELED] == 1


@pytest.mark.usefixtures("certainly_quick")
@pytest.mark.parametrize("is_steady", [False, True])
async def test_while_something_runs_or_the_model_gives_no_promise_requests_go_to_the_threads(is_steady):
    model_function = Whereabouts()
    settings = config(dims=(1,) if not is_steady else (-1,))
    async with serving(model_function, settings, is_steady=is_steady) as model:
        for value in range(40):
            request = ask(value)
            model.infer(request)
            answer(request)
        assert threading.get_ident() not in model_function.threads


@pytest.mark.usefixtures("certainly_quick")
async def test_a_quick_model_that_is_busy_queues_what_comes():
    model_function = Whereabouts()
    async with serving(model_function, is_steady=True) as model:
        for value in range(20):
            request = ask(value)
            model.infer(request)
            answer(request)
        gate = model_function.gate = Gate()
        first = ask(1, 2)  # two rows: not yet trusted, so it goes to a thread
        model.infer(first)
        gate.wait_entered()
        second = ask(3)
        model.infer(second)
        assert model.num_waiting == 1
        gate.open(2)
        assert (answer(first), answer(second)) == ([1, 2], [3])


@pytest.mark.usefixtures("certainly_quick")
async def test_without_batching_a_quick_model_does_not_queue_behind_what_runs():
    model_function = Whereabouts()
    async with serving(model_function, config(batching=None), is_steady=True) as model:
        for value in range(20):
            request = ask(value)
            model.infer(request)
            answer(request)
        gate = model_function.gate = Gate()
        stuck = ask(1, 2)
        model.infer(stuck)
        gate.wait_entered()
        model_function.gate = None
        request = ask(3)
        model.infer(request)
        assert request.stream.ended
        assert answer(request) == [3]
        gate.open()
        assert answer(stuck) == [1, 2]
