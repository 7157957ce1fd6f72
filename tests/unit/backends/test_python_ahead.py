"""Requests that wait together travel to the model's process together, though each is executed by itself."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from backends.python.frames import Work
from scheduler.python_model import PythonModel
from tests.unit.backends.python_models import ONE_INT, PATIENCE, ask, loaded, request

NUM = 200
EXECUTES = """
import os, time
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            value = pb.get_input_tensor_by_name(r, "IN").as_numpy()
            match int(value.flat[0]):
                case -1: os._exit(1)
                case -2: time.sleep(60)
                case -3: time.sleep(0.01)
            out.append(pb.InferenceResponse([pb.Tensor("OUT", value * 0 + len(requests))]))
        return out
"""


def frames_of(model: PythonModel) -> list[Work]:
    """The work that is sent from now on."""
    (instance,) = model.backend.instances
    exchange, sent = instance._exchange, []
    send = exchange._send

    def watch(frame: Any, packer: Any = None) -> None:
        if isinstance(frame, Work):
            sent.append(frame)
        send(frame, packer)

    exchange._send = watch
    return sent


def begin(model: PythonModel, values: list[int]) -> list[InferenceRequest]:
    asked = [request([value]) for value in values]
    for each in asked:
        model.infer(each)
    return asked


async def outcomes(asked: list[InferenceRequest]) -> list[Any]:
    async def outcome(each: InferenceRequest) -> Any:
        try:
            return (await anext(each.stream)).outputs[0].data.item()
        except ServingError as error:
            return error.reason or error.code

    return await asyncio.wait_for(asyncio.gather(*map(outcome, asked)), PATIENCE)


async def quick(model: PythonModel) -> None:
    for _ in range(100):  # until the start's slow first executions are forgotten
        await ask(model)


async def test_what_waits_together_goes_in_one_frame_and_is_executed_one_by_one(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES)
        await quick(model)
        sent = frames_of(model)
        assert await outcomes(begin(model, [1] * NUM)) == [1] * NUM
        assert sum(len(frame.batches) for frame in sent) == NUM
        assert max(len(frame.batches) for frame in sent) > 1
        assert all(len(batch.requests) == 1 for frame in sent for batch in frame.batches)
        counts = model.statistics.snapshot()
        assert counts.execution_count == counts.success.count


async def test_where_an_execution_is_slow_nothing_is_sent_before_its_time(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES)
        await ask(model, [-3])
        sent = frames_of(model)
        assert await outcomes(begin(model, [-3] * 10)) == [1] * 10
        assert [len(frame.batches) for frame in sent] == [1] * 10


async def test_a_request_that_ends_the_process_takes_no_other_with_it(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES)
        await quick(model)
        values = [1] * NUM
        values[NUM // 4] = values[NUM // 2] = -1
        expected = [1 if value > 0 else "process_ended" for value in values]
        assert await outcomes(begin(model, values)) == expected


@pytest.mark.slow
async def test_time_to_execute_begins_when_the_one_before_has_ended(tmp_path: Path) -> None:
    config = ONE_INT + 'parameters { key: "EXECUTION_TIMEOUT_SECS" value { string_value: "3" } }'
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES, config)
        await quick(model)
        values = [1] * NUM
        values[NUM // 2] = -2
        found = await outcomes(begin(model, values))
        assert [number for number, each in enumerate(found) if each != 1] == [NUM // 2]


async def test_a_caller_who_leaves_while_it_waits_in_the_process_leaves_the_others(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES)
        await quick(model)
        asked = begin(model, [1] * NUM)
        for each in asked[::2]:
            each.stream.cancel()
        found = await outcomes(asked)
        assert found[1::2] == [1] * (NUM // 2)
        assert set(found[::2]) <= {1, Code.CANCELLED}
        model._scheduler.check()


async def test_one_that_cannot_be_packed_fails_by_itself(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES)
        await quick(model)
        asked = begin(model, [1] * 20)
        broken = InferenceRequest("m", "", [Tensor("IN", "BYTES", (1, 1), [5])])  # type: ignore[list-item]
        model.infer(broken)
        asked += begin(model, [1] * 20)
        assert await outcomes(asked) == [1] * 40
        assert await outcomes([broken]) == [Code.INTERNAL]


async def test_a_model_may_write_into_its_inputs(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            value = r.inputs()[0].as_numpy()
            value += 1
            out.append(pb.InferenceResponse([pb.Tensor("OUT", value)]))
        return out
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        assert await ask(model, [1, 2]) == [[2, 3]]
        large = np.arange(50_000)
        assert await ask(model, large) == [(large + 1).tolist()]


async def test_nothing_new_crosses_before_all_that_crossed_is_done(tmp_path: Path) -> None:
    """It might be a call that one of them makes, and would wait behind its caller for ever."""
    async with loaded(tmp_path) as models:
        model = await models.load("m", EXECUTES)
        await quick(model)
        (instance,) = model.backend.instances
        exchange, left_over = instance._exchange, []
        send = exchange._send

        def watch(frame: Any, packer: Any = None) -> None:
            if isinstance(frame, Work):
                left_over.append(exchange.num_executing - len(frame.batches))
            send(frame, packer)

        exchange._send = watch
        assert await outcomes(begin(model, [1] + [-3] * 24)) == [1] * 25  # slow enough to be told of one by one
        assert len(left_over) > 1
        assert set(left_over) == {0}
