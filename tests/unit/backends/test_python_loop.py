"""A custom model lives on the event loop; its own thread is for what would block that."""

import asyncio
import threading
from pathlib import Path

import numpy as np

from backends.api.model_config import InstanceGroup
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from scheduler.python_model import PythonModel
from tests.unit.backends.python_models import ONE_INT, PATIENCE, ask, failure, loaded, request

ECHO = """
import json, os
class TritonPythonModel:
    def initialize(self, args):
        self.groups = len(json.loads(args["model_config"])["instance_group"])
    def execute(self, requests):
        out = []
        for r in requests:
            value = r.inputs()[0].as_numpy()
            if value.flat[0] == -1: os._exit(1)
            out.append(pb.InferenceResponse([pb.Tensor("OUT", value if value.flat[0] else value * 0 + self.groups)]))
        return out
"""
INLINE = 15_000  # INT32 that still travel in the frame


async def thread_of_answer(model: PythonModel) -> int:
    loop, threads, answered = asyncio.get_running_loop(), list[int](), asyncio.Event()

    def note() -> None:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(answered.set)

    asked = request()
    model.infer(asked)
    asked.stream.notify(note)
    await asyncio.wait_for(answered.wait(), PATIENCE)
    return threads[0]


async def test_answers_come_on_the_loop_also_from_the_next_process(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", ECHO)
        assert await thread_of_answer(model) == threading.get_ident()
        assert (await failure(model, [-1])).reason == "process_ended"
        assert await thread_of_answer(model) == threading.get_ident()


async def test_a_model_with_a_claim_on_resources_waits_for_it_on_its_thread(tmp_path: Path) -> None:
    config = ONE_INT + 'instance_group [ { kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 1 } ] } } ]'
    async with loaded(tmp_path) as models:
        model = await models.load("m", ECHO, config)
        assert await asyncio.gather(*(ask(model, [value]) for value in range(1, 20))) == [[[v]] for v in range(1, 20)]


async def test_what_the_socket_does_not_take_at_once_follows(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load(
            "m", ECHO, ONE_INT.replace("max_batch_size: 8", "max_batch_size: 64 dynamic_batching {}")
        )
        arrays = [np.full((1, INLINE), value, np.int32) for value in range(1, 65)]
        asked = [InferenceRequest("m", "", [Tensor.from_numpy("IN", array)]) for array in arrays]
        for each in asked:
            model.infer(each)
        answers = await asyncio.wait_for(asyncio.gather(*(anext(each.stream) for each in asked)), PATIENCE)
        for array, answer in zip(arrays, answers, strict=True):
            np.testing.assert_array_equal(answer.outputs[0].as_numpy(), array)


async def test_instances_that_come_later_see_the_groups_they_are_of(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", ECHO)
        await model.set_instances((InstanceGroup("b", "KIND_MODEL"), InstanceGroup("c", "KIND_CPU", passive=True)))
        await asyncio.to_thread(model._instances.join_retired)
        assert await ask(model, [0]) == [[2]]


async def test_a_large_request_crosses_among_small_ones(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", ECHO)
        large = list(range(1, 200_000))
        values = [[1], large, [2], large, [3]]
        assert await asyncio.gather(*(ask(model, each) for each in values)) == [[each] for each in values]
