"""A real model under random requests, cancels, time-outs, reloads, resizes, unloads and failed loads: each request ends once."""

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository
from scheduler.engine_observer import EngineObserver
from scheduler.loader import ModelLoader

CONFIG = """
backend: "identity" max_batch_size: 8
input [{{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }}]
instance_group {{ kind: KIND_CPU count: {count} }}
{more}
"""
QUEUE = """dynamic_batching {{ max_queue_delay_microseconds: {delay}
  default_queue_policy {{ allow_timeout_override: true default_timeout_microseconds: 50000 max_queue_size: 20 }} }}"""
ENDS = {Code.OVERLOADED, Code.UNAVAILABLE, Code.CANCELLED, Code.NOT_FOUND, Code.DEADLINE}
acts = st.sampled_from(["resize", "resize", "reload", "break", "unload", "load", "override"])
NUM_CALLERS, NUM_REQUESTS = 4, 15


def write(folder: Path, count: int, delay: int, *, sound: bool = True) -> None:
    more = QUEUE.format(delay=delay) if sound else "dynamic_batching { preferred_batch_size: [ 99 ] }"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG.format(count=count, more=more) + "#" * random.randrange(1000))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(acts, min_size=3, max_size=12), seed=st.integers(0, 1 << 16))
def test_every_request_ends_once_with_its_own_rows(steps: list[str], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ends = asyncio.run(live(Path(folder) / "m", steps, random.Random(seed)))
    assert ends.total() == NUM_CALLERS * NUM_REQUESTS
    assert ends.keys() <= {"answered", *ENDS}


async def live(folder: Path, steps: list[str], chance: random.Random) -> Counter[object]:
    write(folder, 1, 0)
    options = RepositoryOptions(paths=(folder.parent,), mode="explicit")
    repository = Repository(options, ModelLoader(lambda config, version: EngineObserver()))
    await repository.load("m")
    ends: Counter[object] = Counter()
    async with asyncio.TaskGroup() as callers:
        for caller in range(NUM_CALLERS):
            callers.create_task(call(repository, caller, chance, ends))
        for step in steps:
            await control(repository, folder, step, chance)
    await repository.close()
    assert repository.live_models() == []
    return ends


async def control(repository: Repository, folder: Path, step: str, chance: random.Random) -> None:
    if step in ("resize", "reload"):
        write(folder, chance.randint(1, 3), 0 if step == "resize" else chance.randint(1, 300))
    elif step == "break":
        write(folder, 1, 0, sound=False)
    try:
        if step == "unload":
            await repository.unload("m")
        elif step == "override":
            await repository.load("m", '{"backend": "identity"}', {"file:2/x": b""})
        else:
            await repository.load("m")
    except ServingError:
        assert step in ("break", "load", "override")


async def call(repository: Repository, caller: int, chance: random.Random, ends: Counter[object]) -> None:
    for turn in range(NUM_REQUESTS):
        rows = chance.randint(1, 4)
        array = np.full((rows, 1), 1000.0 * caller + turn, np.float32)
        request = InferenceRequest("m", "", [Tensor("IN", "FP32", array.shape, array)])
        request.timeout_us = chance.choice([0, 0, 100])
        try:
            repository.find("m").infer(request)
            if chance.random() < 0.2:
                request.stream.cancel()
            (response,) = [response async for response in request.stream]
            assert np.array_equal(response.outputs[0].as_numpy(), array)
            ends["answered"] += 1
        except ServingError as error:
            ends[error.code] += 1
        assert request.stream.ended or not request.times.queued
        await asyncio.sleep(0)
