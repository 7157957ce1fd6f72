"""A running tensor model: answers, errors, limits, order and the end."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from backends.api.statistics import Failure
from backends.api.tensor import Tensor
from tests.unit.scheduler.tensor_fakes import PATIENCE, Gate, answer, ask, config, echo, serving


def limited(**policy: object) -> DynamicBatching:
    return DynamicBatching(default_queue_policy=QueuePolicy(**policy))  # type: ignore[arg-type]


async def test_a_request_is_answered_with_its_id_model_and_version():
    async with serving() as model:
        assert isinstance(model, LiveModel)
        request = ask(1, 2, id="x")
        model.infer(request)
        (response,) = await request.stream.take()
        assert (response.id, response.model, response.version) == ("x", "fake", "1")
        assert response.outputs[0].as_numpy().tolist() == [[1], [2]]
        assert await request.stream.take() == []


async def test_requests_that_gather_while_the_model_is_busy_share_a_batch():
    gate = Gate()
    async with serving(gate) as model:
        requests = [ask(value) for value in range(6)]
        model.infer(requests[0])
        gate.wait_entered()
        for request in requests[1:]:
            model.infer(request)
        gate.open(2)
        assert [answer(request) for request in requests] == [[value] for value in range(6)]
        assert gate.batches == [[0], [1, 2, 3, 4, 5]]


async def test_rows_are_counted_and_not_requests():
    gate = Gate()
    async with serving(gate) as model:
        model.infer(ask(0))
        gate.wait_entered()
        requests = [ask(value, value, value) for value in range(4)]
        for request in requests:
            model.infer(request)
        gate.open(3)
        assert [answer(request) for request in requests] == [[value] * 3 for value in range(4)]
        assert [len(batch) for batch in gate.batches] == [1, 6, 6]


async def test_more_rows_than_max_batch_size_are_refused():
    async with serving() as model:
        with pytest.raises(ServingError, match="batch-size must be <= 8 for 'fake'"):
            model.infer(ask(*range(9)))
        assert model.statistics.snapshot().failures[Failure.OTHER] == 1


async def test_a_lone_request_does_not_wait_for_the_delay():
    batching = DynamicBatching(max_queue_delay_microseconds=3_600_000_000)
    async with serving(model_config=config(batching=batching)) as model:
        for value in range(20):
            request = ask(value)
            model.infer(request)
            assert answer(request) == [value]


async def test_a_waiting_batch_goes_when_it_reaches_a_preferred_size():
    gate = Gate()
    batching = DynamicBatching(preferred_batch_size=(3,), max_queue_delay_microseconds=3_600_000_000)
    async with serving(gate, config(batching=batching, count=2)) as model:
        model.infer(ask(0))
        gate.wait_entered()
        requests = [ask(value) for value in (1, 2, 3)]
        for request in requests:
            model.infer(request)
        gate.wait_entered()  # on the second instance, while the first is still busy
        assert gate.batches == [[0], [1, 2, 3]]
        gate.open(2)
        assert [answer(request) for request in requests] == [[1], [2], [3]]


async def test_close_does_not_wait_for_a_batch_to_fill():
    gate = Gate()
    batching = DynamicBatching(preferred_batch_size=(8,), max_queue_delay_microseconds=3_600_000_000)
    async with serving(gate, config(batching=batching, count=2)) as model:
        first, second, third = ask(1), ask(2), ask(3)
        model.infer(first)
        gate.wait_entered()
        model.infer(second)
        model.infer(third)
        closing = asyncio.ensure_future(model.close())
        gate.open(3)
        await closing
        assert [answer(request) for request in (first, second, third)] == [[1], [2], [3]]
        assert sorted(map(len, gate.batches)) == [1, 2]


async def test_close_answers_what_was_taken_and_refuses_what_comes_later():
    gate = Gate()
    async with serving(gate) as model:
        requests = [ask(value) for value in range(20)]
        for request in requests:
            model.infer(request)
        closing = [asyncio.ensure_future(model.close()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ServingError) as caught:
            model.infer(ask(0))
        assert caught.value.code is Code.UNAVAILABLE
        gate.open(20)
        await asyncio.gather(*closing)
        assert [answer(request) for request in requests] == [[value] for value in range(20)]


async def test_an_error_of_the_backend_keeps_its_code_and_hits_its_batch_alone():
    def refuse_negative(inputs, outputs):
        if (inputs["IN"].as_numpy() < 0).any():
            raise ServingError(Code.UNAVAILABLE, "boom")
        return echo(inputs, outputs)

    async with serving(refuse_negative) as model:
        bad, good = ask(-1), ask(1)
        model.infer(bad)
        with pytest.raises(ServingError) as caught:
            answer(bad)
        assert (caught.value.code, caught.value.message) == (Code.UNAVAILABLE, "boom")
        model.infer(good)
        assert answer(good) == [1]


@pytest.mark.parametrize(
    "error", [RuntimeError("no such luck"), SystemExit("no such luck"), MemoryError("no such luck")]
)
async def test_whatever_a_model_raises_its_caller_hears_of_it_and_the_next_is_served(error):
    errors = [error]

    def fail_once(inputs, outputs):
        if errors:
            raise errors.pop()
        return echo(inputs, outputs)

    async with serving(fail_once) as model:
        bad, good = ask(1), ask(2)
        model.infer(bad)
        with pytest.raises(ServingError, match="no such luck") as caught:
            answer(bad)
        assert caught.value.code is Code.INTERNAL
        assert "Traceback" not in caught.value.message
        model.infer(good)
        assert answer(good) == [2]


async def test_a_wrong_row_count_is_an_error_for_every_member():
    gate = Gate()

    def one_row_too_many(inputs, outputs):
        gate(inputs, outputs)
        rows = inputs["IN"].shape[0] + 1
        return {"OUT": Tensor("OUT", "FP32", (rows, 1), np.zeros((rows, 1), np.float32))}

    async with serving(one_row_too_many) as model:
        requests = [ask(value) for value in range(4)]
        for request in requests:
            model.infer(request)
        gate.open(4)
        for request in requests:
            with pytest.raises(ServingError, match=r"expected . rows") as caught:
                answer(request)
            assert caught.value.code is Code.INTERNAL
        assert model.statistics.snapshot().failures[Failure.BACKEND] == 4


@pytest.mark.parametrize("wait_for_the_first", [False, True])
async def test_exactly_the_running_and_max_queue_size_are_taken_in_at_any_spacing(wait_for_the_first):
    gate = Gate()
    async with serving(gate, config(max_batch_size=1, batching=limited(max_queue_size=2))) as model:
        taken, refused = [], []
        for value in range(8):
            request = ask(value)
            try:
                model.infer(request)
                taken.append(request)
            except ServingError as error:
                refused.append(error)
            if wait_for_the_first and value == 0:
                gate.wait_entered()
        gate.open(8)
        assert [answer(request) for request in taken] == [[0], [1], [2]]
        assert [error.code for error in refused] == [Code.OVERLOADED] * 5
        assert refused[0].message == "[request id: <id_unknown>] Exceeds maximum queue size"
        assert model.statistics.snapshot().failures[Failure.REJECTED] == 5


async def test_a_cancelled_request_gives_its_place_in_the_queue_back():
    gate = Gate()
    async with serving(gate, config(max_batch_size=1, batching=limited(max_queue_size=1))) as model:
        first, second, third = ask(1), ask(2), ask(3)
        model.infer(first)
        gate.wait_entered()
        model.infer(second)
        second.stream.cancel()
        assert model.num_waiting == 0
        model.infer(third)
        gate.open(2)
        assert (answer(first), answer(third)) == ([1], [3])
        assert gate.batches == [[1], [3]]
        assert model.statistics.snapshot().failures[Failure.CANCELED] == 1


async def test_a_cancel_while_running_is_counted_and_harms_no_neighbour():
    gate = Gate()
    async with serving(gate) as model:
        model.infer(ask(0))
        gate.wait_entered()
        leaver, stayer = ask(1), ask(2)
        model.infer(leaver)
        model.infer(stayer)
        gate.open()
        gate.wait_entered()
        leaver.stream.cancel()
        gate.open()
        assert answer(stayer) == [2]
        with pytest.raises(ServingError):
            answer(leaver)
        counts = model.statistics.snapshot()
        assert (counts.success.count, counts.failures[Failure.CANCELED]) == (2, 1)
        assert counts.inference_count == 2
        assert counts.compute_infer.count == counts.queue.count == 3


@pytest.mark.parametrize("batching", [limited(default_timeout_microseconds=200_000), DynamicBatching(), None])
async def test_a_timeout_in_the_queue_does_not_wait_for_a_free_instance(batching):
    gate = Gate()
    async with serving(gate, config(max_batch_size=1, batching=batching)) as model:
        first = ask(1)
        model.infer(first)
        gate.wait_entered()
        late = ask(2, timeout_us=1000)
        model.infer(late)
        with pytest.raises(ServingError, match="Request timeout expired") as caught:
            answer(late)  # the model is still busy: only the timer can have ended it
        assert caught.value.code is Code.UNAVAILABLE
        gate.open()
        assert answer(first) == [1]
        assert gate.batches == [[1]]


async def test_a_callers_deadline_ends_the_wait():
    gate = Gate()
    async with serving(gate) as model:
        model.infer(ask(1))
        gate.wait_entered()
        late = ask(2, deadline=0.001)
        model.infer(late)
        with pytest.raises(ServingError) as caught:
            answer(late)
        assert caught.value.code is Code.DEADLINE
        gate.open()


async def test_under_delay_a_late_request_is_answered_after_the_others():
    gate = Gate()
    policy = limited(timeout_action=TimeoutAction.DELAY, default_timeout_microseconds=1, allow_timeout_override=False)
    async with serving(gate, config(max_batch_size=1, batching=policy)) as model:
        model.infer(ask(0))
        gate.wait_entered()
        late = ask(1)
        model.infer(late)
        gate.open(2)
        assert answer(late) == [1]


async def test_the_highest_priority_waiting_goes_first():
    gate = Gate()
    batching = DynamicBatching(priority_levels=3, default_priority_level=2)
    async with serving(gate, config(max_batch_size=1, batching=batching)) as model:
        model.infer(ask(-1))
        gate.wait_entered()
        requests = [ask(priority, priority=priority) for priority in (3, 0, 1, 3, 2, 1)]
        for request in requests:
            model.infer(request)
        gate.open(7)
        for request in requests:
            answer(request)
        assert gate.batches[1:] == [[1], [1], [0], [2], [3], [3]]


async def test_preserve_ordering_holds_a_fast_answer_back_for_a_slow_one():
    gate = Gate()

    def slow_first(inputs, outputs):
        return gate(inputs, outputs) if inputs["IN"].as_numpy()[0, 0] == 0 else echo(inputs, outputs)

    settings = config(max_batch_size=1, batching=DynamicBatching(preserve_ordering=True), count=2)
    async with serving(slow_first, settings) as model:
        slow, cancelled, fast = ask(0), ask(1), ask(2)
        model.infer(slow)
        gate.wait_entered()
        model.infer(cancelled)
        model.infer(fast)
        cancelled.stream.cancel()
        with pytest.raises(TimeoutError):
            fast.stream.get(0.01)
        gate.open()
        assert (answer(slow), answer(fast)) == ([0], [2])


async def test_two_instances_run_at_once():
    gate = Gate()
    async with serving(gate, config(max_batch_size=1, count=2)) as model:
        requests = [ask(1), ask(2)]
        for request in requests:
            model.infer(request)
        gate.wait_entered()
        gate.wait_entered()
        gate.open(2)
        assert [answer(request) for request in requests] == [[1], [2]]


async def test_a_slow_model_delays_neither_its_caller_nor_another_model():
    gate = Gate()
    async with serving(gate) as slow, serving() as fast:
        stuck = ask(1)
        slow.infer(stuck)
        gate.wait_entered()
        for value in range(50):
            request = ask(value)
            fast.infer(request)
            (response,) = await asyncio.wait_for(request.stream.take(), PATIENCE)
            assert response.outputs[0].as_numpy().tolist() == [[value]]
        assert not stuck.stream.ended
        gate.open()
        assert answer(stuck) == [1]


async def test_nothing_of_a_request_is_kept_when_it_is_answered():
    async with serving() as model:
        request = ask(1)
        model.infer(request)
        await request.stream.take()
        await request.stream.take()
        gone = weakref.ref(request.inputs[0].data)
        second = ask(2)  # the instance's thread has come round when this one is answered
        del request
        model.infer(second)
        await second.stream.take()
        gc.collect()
        assert gone() is None


async def test_without_batching_shapes_are_complete_and_requests_stay_alone():
    gate = Gate()
    async with serving(gate, config(max_batch_size=0, batching=None, dims=(-1, 1))) as model:
        requests = [ask(1, 2), ask(3)]
        for request in requests:
            model.infer(request)
        gate.open(2)
        assert [answer(request) for request in requests] == [[1, 2], [3]]
        counts = model.statistics.snapshot()
        assert (counts.inference_count, counts.execution_count) == (2, 2)
