"""Quick models on their caller's thread: who runs what, where, and that nobody else notices."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np

from backends.api.model_config import DynamicBatching, InstanceGroup, ModelConfig
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from scheduler import stand_in
from scheduler.load import start_tensor_model
from scheduler.stand_in import QUICK, RunTime
from scheduler.tensor_model import TensorModel
from tests.unit.scheduler.tensor_fakes import ALARM, PATIENCE, FakeBackend, Gate, answer, ask, config, echo


def test_a_model_is_quick_once_it_has_been_so_for_a_while() -> None:
    time = RunTime()
    assert not time.is_quick
    for _ in range(100):
        time.add(QUICK / 10)
    assert time.is_quick


def test_one_slow_run_is_remembered_for_many_quick_ones() -> None:
    time = RunTime()
    for _ in range(1000):
        time.add(0.0)
    time.add(1.0)
    for _ in range(100):
        time.add(QUICK / 10)
    assert not time.is_quick


class Recorder:
    """An `echo` that remembers its batches and the threads it ran on."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.threads: list[int] = []

    def __call__(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        self.batches.append(np.asarray(inputs["IN"].data).ravel().tolist())
        self.threads.append(threading.get_ident())
        return echo(inputs, outputs)


async def started(backend: FakeBackend, model_config: ModelConfig, tmp_path, *, quick: bool = True) -> TensorModel:
    """A model that has had time to show how quick it is, and whose threads sit idle."""
    function, asked = backend.function, Recorder()
    backend.function = asked
    model = await start_tensor_model(backend, model_config, "1", tmp_path, alarm=ALARM)
    for _ in range(1000 if quick else 0):
        model.run_time.add(0.0)
    async with asyncio.timeout(PATIENCE):
        while backend.any_thread and quick and threading.get_ident() not in asked.threads:
            await all_answers([ask_into(model, 0)])
    backend.function = function
    return model


def ask_into(model: TensorModel, value: float) -> InferenceRequest:
    request = ask(value)
    model.infer(request)
    return request


async def all_answers(requests: Sequence[InferenceRequest]) -> list[list[float]]:
    responses = [await anext(request.stream) for request in requests]
    return [np.asarray(response.outputs[0].data).ravel().tolist() for response in responses]


async def test_a_quick_model_runs_on_the_loops_thread_and_requests_of_one_turn_share_a_batch(tmp_path) -> None:
    recorder = Recorder()
    model = await started(FakeBackend(recorder, any_thread=True), config(), tmp_path)
    requests = [ask_into(model, value) for value in range(3)]
    assert recorder.batches == [], "not before the turn ends"
    assert await all_answers(requests) == [[0], [1], [2]]
    assert recorder.batches == [[0, 1, 2]]
    assert recorder.threads == [threading.get_ident()]
    await model.close()


async def test_readers_are_woken_when_all_that_came_in_one_turn_has_run(tmp_path) -> None:
    recorder, seen = Recorder(), list[int]()
    model = await started(FakeBackend(recorder, any_thread=True), config(batching=None), tmp_path)
    for value in range(3):
        ask_into(model, value).stream.notify_on_loop(lambda: seen.append(len(recorder.batches)))
    await model.close()
    assert recorder.batches == [[0], [1], [2]]
    assert seen == [3, 3, 3]


async def test_runs_that_take_longer_than_a_turn_go_on_in_the_next_of_the_same_loop(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stand_in, "_TURN", -1.0)
    recorder, seen = Recorder(), list[int]()
    model = await started(FakeBackend(recorder, any_thread=True), config(batching=None), tmp_path)
    requests = [ask_into(model, value) for value in range(3)]
    for _ in requests:
        await asyncio.sleep(0)
        seen.append(len(recorder.batches))
    assert seen == [1, 2, 3]
    assert recorder.threads == [threading.get_ident()] * 3
    assert await all_answers(requests) == [[0], [1], [2]]
    await model.close()


async def test_what_a_turn_leaves_of_a_model_that_is_quick_no_more_goes_to_its_thread(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stand_in, "_TURN", -1.0)
    recorder = Recorder()
    model = await started(FakeBackend(recorder, any_thread=True), config(batching=None), tmp_path)
    requests = [ask_into(model, value) for value in range(2)]
    model.run_time.add(1.0)
    assert await all_answers(requests) == [[0], [1]]
    assert recorder.threads[0] == threading.get_ident() != recorder.threads[1]
    await model.close()


async def infer_without_a_loop(model: TensorModel) -> tuple[bool, int]:
    """Whether a request had its answer when `infer` returned, and the thread that asked."""

    def call() -> tuple[bool, int]:
        return ask_into(model, 1).stream.ended, threading.get_ident()

    return await asyncio.to_thread(call)


async def test_where_no_loop_runs_a_quick_model_has_answered_when_infer_returns(tmp_path) -> None:
    recorder = Recorder()
    model = await started(FakeBackend(recorder, any_thread=True), config(batching=None), tmp_path)
    ended, thread = await infer_without_a_loop(model)
    assert ended
    assert recorder.threads == [thread]
    await model.close()


async def test_where_no_loop_runs_requests_that_may_share_a_batch_are_left_to_gather(tmp_path) -> None:
    recorder = Recorder()
    model = await started(FakeBackend(recorder, any_thread=True), config(), tmp_path)
    _, thread = await infer_without_a_loop(model)
    await model.close()
    assert len(recorder.threads) == 1
    assert thread not in recorder.threads


async def test_a_model_that_is_not_quick_or_bound_to_its_thread_never_runs_on_its_callers(tmp_path) -> None:
    for any_thread, quick in ((True, False), (False, True)):
        recorder = Recorder()
        model = await started(FakeBackend(recorder, any_thread=any_thread), config(), tmp_path, quick=quick)
        requests = [ask_into(model, value) for value in range(3)]
        assert await all_answers(requests) == [[0], [1], [2]]
        assert threading.get_ident() not in recorder.threads
        await model.close()


async def test_a_large_input_goes_to_the_models_thread(tmp_path) -> None:
    recorder = Recorder()
    backend = FakeBackend(recorder, any_thread=True)
    model = await started(backend, config(max_batch_size=100_000), tmp_path)
    request = ask(*range(50_000))
    model.infer(request)
    await anext(request.stream)
    assert threading.get_ident() not in recorder.threads
    await model.close()


async def test_a_batch_that_waits_for_more_is_left_to_the_models_thread(tmp_path) -> None:
    recorder = Recorder()
    batching = DynamicBatching(preferred_batch_size=(4,), max_queue_delay_microseconds=50_000)
    model = await started(FakeBackend(recorder, any_thread=True), config(batching=batching), tmp_path)
    requests = [ask_into(model, value) for value in range(2)]
    assert await all_answers(requests) == [[0], [1]]
    assert recorder.batches == [[0, 1]]
    assert threading.get_ident() not in recorder.threads
    await model.close()


async def test_never_more_batches_run_at_once_than_there_are_instances(tmp_path) -> None:
    gate = Gate()
    model = await started(FakeBackend(gate, any_thread=True), config(batching=None), tmp_path)
    first, second = ask(1), ask(2)
    caller = threading.Thread(target=model.infer, args=(first,))
    caller.start()
    await asyncio.to_thread(gate.wait_entered)
    model.infer(second)  # the one instance is taken: by another caller, in its thread's place
    assert gate.batches == [[1]]
    gate.open(2)
    assert await asyncio.to_thread(answer, first) == [1]
    assert await all_answers([second]) == [[2]]
    caller.join()
    await model.close()


async def test_an_instance_that_is_to_go_stays_until_the_batch_run_in_its_place_is_done(tmp_path) -> None:
    gate = Gate()
    backend = FakeBackend(gate, any_thread=True)
    model = await started(backend, config(batching=None), tmp_path)
    request = ask(1)
    caller = threading.Thread(target=model.infer, args=(request,))
    caller.start()
    await asyncio.to_thread(gate.wait_entered)
    await model.set_instances((InstanceGroup(kind="KIND_CPU", passive=True),))
    assert backend.num_open == 2
    gate.open()
    assert await asyncio.to_thread(answer, request) == [1]
    caller.join()
    async with asyncio.timeout(PATIENCE):
        while backend.num_open == 2:
            await asyncio.sleep(0)
    await model.close()


async def test_what_was_taken_is_answered_by_a_close_in_the_same_turn(tmp_path) -> None:
    backend = FakeBackend(Recorder(), any_thread=True)
    model = await started(backend, config(), tmp_path)
    requests = [ask_into(model, value) for value in range(5)]
    await model.close()
    assert await all_answers(requests) == [[value] for value in range(5)]
    assert backend.num_open == 0


async def test_an_execution_that_raises_fails_its_batch_alone(tmp_path) -> None:
    def run(inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        if 13 in np.asarray(inputs["IN"].data):
            raise SystemExit("unlucky")
        return echo(inputs, outputs)

    model = await started(FakeBackend(run, any_thread=True), config(batching=None), tmp_path)
    requests = [ask_into(model, value) for value in (12, 13, 14)]
    results = await asyncio.gather(*(anext(request.stream) for request in requests), return_exceptions=True)
    assert [isinstance(result, BaseException) for result in results] == [False, True, False]
    assert "unlucky" in str(results[1])
    await model.close()
