"""The pooling engine: every text's own vector, every request's one end, and nobody held up by a large neighbour."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, Pooling, SamplingParams
from backends.pooling.runner import Row
from scheduler.engine_errors import EngineBrokenError
from scheduler.engine_options import EngineOptions
from scheduler.frames import Commands, NewRequest, StepFrame
from scheduler.pooling_engine import PoolingEngine, measured_pace
from scheduler.pooling_plan import STEP_SECONDS, PoolingQueue, due_times, token_budget
from tests.fakes.pooling_runner import DIMENSION, MAX_LEN, FakePoolingRunner, expected_vector
from tests.fakes.token_runner import FakeClock

NOTHING = SamplingParams(max_tokens=0)


class TimedRunner(FakePoolingRunner):
    """Takes a millisecond of a fake clock for a token."""

    def __init__(self) -> None:
        super().__init__(self._pass)
        self.clock = FakeClock()

    def _pass(self, rows: Sequence[Row]) -> None:
        self.clock.now += 0.001 * sum(len(row.tokens) for row in rows)


def request(number: int, texts: list[list[int]], arrived: float = 0.0, **fields) -> NewRequest:
    prompt = [token for text in texts for token in text]
    pooling = Pooling([len(text) for text in texts], [len(text) // 2 for text in texts])
    values = {"priority": 0, "deadline": None, "cache_salt": ""} | fields
    return NewRequest(number, prompt, NOTHING, arrived=arrived, pooling=pooling, **values)


def wanted(texts: list[list[int]]) -> list[list[float]]:
    return [expected_vector(text, len(text) // 2).tolist() for text in texts]


def vectors(frame: StepFrame) -> dict[int, list[list[float]]]:
    found = {}
    for number, event in frame.events:
        assert event.finish is FinishReason.STOP
        found[number] = np.frombuffer(event.vectors, np.float32).reshape(-1, DIMENSION).tolist()
    return found


def test_a_request_ends_when_its_last_text_is_computed():
    engine = PoolingEngine(FakePoolingRunner(), EngineOptions(max_num_seqs=1, max_num_batched_tokens=4))
    texts = [[1, 2], [3, 4, 5], [6]]
    engine.add(request(1, texts))
    first, second = engine.step(), engine.step()
    assert (vectors(first), vectors(second)) == ({}, {1: wanted(texts)})
    assert [number for number, _ in first.scheduled] == [1]
    assert (second.scheduled, engine.has_work) == ([], False)


def test_a_text_larger_than_the_budget_runs_alone():
    batches = []
    engine = PoolingEngine(
        FakePoolingRunner(lambda rows: batches.append([len(row.tokens) for row in rows])),
        EngineOptions(max_num_seqs=1, max_num_batched_tokens=8),
    )
    engine.add(request(1, [[1] * 4, [2] * 20, [3] * 4, [4] * 4, [5]]))
    while engine.has_work:
        engine.step()
    assert batches == [[4], [20], [4, 4], [1]]


@pytest.mark.parametrize("seed", range(8))
def test_every_request_ends_once_with_its_own_vectors(seed):
    rng = random.Random(seed)
    runner = TimedRunner()
    clock = runner.clock
    options = EngineOptions(max_num_seqs=1, max_num_batched_tokens=rng.choice([8, 64, 512]))
    engine = PoolingEngine(runner, options, clock=clock)
    texts: dict[int, list[list[int]]] = {}
    aborted: set[int] = set()
    ended: dict[int, object] = {}
    for number in range(1, 400):
        clock.now += rng.random() * 0.02
        texts[number] = [
            [rng.randrange(500) for _ in range(rng.randint(1, MAX_LEN))] for _ in range(rng.choice([1, 1, 2, 9]))
        ]
        deadline = clock.now + rng.random() * 0.1 if rng.random() < 0.2 else None
        engine.add(request(number, texts[number], clock.now, priority=rng.randint(0, 2), deadline=deadline))
        if rng.random() < 0.2:
            victim = rng.randint(1, number)
            engine.abort(victim)
            if victim not in ended:
                aborted.add(victim)
        if rng.random() < 0.8:
            collect(engine.step(), ended)
    while engine.has_work:
        collect(engine.step(), ended)
    assert ended.keys() | aborted == texts.keys()
    assert not ended.keys() & aborted
    for number, end in ended.items():
        assert end in (wanted(texts[number]), Code.DEADLINE.value)


def collect(frame: StepFrame, ended: dict[int, object]) -> None:
    for number, found in [*vectors(frame).items(), *((number, failure.code) for number, failure in frame.failures)]:
        assert number not in ended
        ended[number] = found


def test_a_single_text_passes_the_rest_of_a_large_request_and_the_large_one_is_not_starved():
    runner = TimedRunner()
    options = EngineOptions(max_num_seqs=1, max_num_batched_tokens=64)
    pace = measured_pace(runner, runner.clock)
    assert pace == pytest.approx(0.001)
    engine = PoolingEngine(runner, options, clock=runner.clock, seconds_per_token=pace)
    engine.add(request(2, [[2] * 10] * 100, runner.clock.now))
    ends: list[int] = []
    for number in range(3, 100):
        ends += vectors(engine.step())
        engine.add(request(number, [[number] * 10], runner.clock.now))
        ends += vectors(engine.step())
        assert ends[-1] in (number, 2)
        if 2 in ends:
            break
    assert 2 in ends


def test_an_urgent_request_goes_before_all_others():
    engine = PoolingEngine(FakePoolingRunner(), EngineOptions(max_num_seqs=1, max_num_batched_tokens=4))
    for number, priority in ((1, 0), (2, 5), (3, -1)):
        engine.add(request(number, [[1] * 4], priority=priority))
    ends = [number for _ in range(3) for number in vectors(engine.step())]
    assert ends == [3, 1, 2]


def test_a_failed_step_ends_its_requests_alone_and_several_end_the_engine():
    broken = True

    def fail(rows: Sequence[Row]) -> None:
        if broken:
            raise ValueError("no memory")

    engine = PoolingEngine(FakePoolingRunner(fail), EngineOptions(max_num_seqs=1, max_num_batched_tokens=4))
    engine.add(request(1, [[1] * 4]))
    engine.add(request(2, [[2] * 4]))
    frame = engine.step()
    assert [(number, failure.code) for number, failure in frame.failures] == [(1, "internal")]
    broken = False
    assert vectors(engine.step()) == {2: wanted([[2] * 4])}
    broken = True
    for number in (3, 4):
        engine.add(request(number, [[1]]))
        assert engine.step().failures
    engine.add(request(5, [[1]]))
    with pytest.raises(EngineBrokenError):
        engine.step()


def test_a_refusal_of_the_runner_keeps_its_code():
    def refuse(rows: Sequence[Row]) -> None:
        raise ServingError(Code.UNSUPPORTED, "not this")

    engine = PoolingEngine(FakePoolingRunner(refuse), EngineOptions())
    engine.add(request(1, [[1]]))
    ((_, failure),) = engine.step().failures
    assert (failure.code, failure.message) == ("unsupported", "not this")


def test_aborts_are_told_in_a_frame_and_close_ends_it():
    engine = PoolingEngine(FakePoolingRunner(), EngineOptions())
    assert not engine.apply(Commands([request(1, [[1]])], [1]))
    assert engine.has_work
    frame = engine.step()
    assert (frame.events, frame.failures, frame.stats.num_running, engine.has_work) == ([], [], 0, False)
    assert engine.apply(Commands(close=True))


def test_the_budget_is_what_a_step_can_do_in_its_time():
    assert token_budget(4096, STEP_SECONDS / 1000) == 1000
    assert token_budget(512, STEP_SECONDS / 1000) == 512
    assert token_budget(4096, 1.0) == token_budget(4096, 0.0) == 256


def test_texts_of_one_request_are_due_one_after_another_and_equal_ones_keep_their_order():
    assert list(due_times(2.0, [10, 30, 5], 0.1)) == [2.0, 4.0, 10.0]
    queue: PoolingQueue[str] = PoolingQueue()
    for text in ("a", "b", "c"):
        queue.add(text, priority=0, due=1.0)
    queue.add("early", priority=0, due=0.5)
    assert [queue.pop() for _ in range(len(queue))] == ["early", "a", "b", "c"]
