"""A model's own word on whether it is ready."""

import asyncio
from pathlib import Path

import pytest

from backends.api.base import check_ready
from backends.api.request import InferenceRequest
from scheduler import python_model
from tests.unit.backends.python_models import PATIENCE, ask, loaded, request

SAYS = """
import asyncio, threading
class TritonPythonModel:
    def initialize(self, args):
        self.word = True
        self.gate = threading.Event()
    {kind} is_ready(self):
        if self.word == "open":
            self.gate.set()
        return {word}
    def execute(self, requests):
        value = int(requests[0].inputs()[0].as_numpy().flat[0])
        self.word = [False, True, 5, "open"][value]
        if value == 3:
            self.gate.wait()
            self.word = True
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
PLAIN = SAYS.format(kind="def", word="self.word")
WAITS = SAYS.format(kind="async def", word="await asyncio.sleep(0, self.word)")


@pytest.mark.parametrize("source", [PLAIN, WAITS])
async def test_a_model_says_when_it_is_not_ready(tmp_path: Path, source: str) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        assert await check_ready(model)
        await ask(model, [0])
        assert not await check_ready(model)
        await ask(model, [1])
        assert await check_ready(model)
        await ask(model, [2])  # a word that is no bool
        assert not await check_ready(model)
        assert await ask(model, [1]) == [[1]]


async def test_a_busy_model_still_has_its_word(tmp_path: Path) -> None:
    async with loaded(tmp_path) as models:
        model = await models.load("m", PLAIN)
        asked = request([3])
        model.infer(asked)  # executes until it is asked
        await asyncio.wait_for(_ask_until_ended(model, asked), PATIENCE)
        assert await check_ready(model)


async def _ask_until_ended(model: python_model.PythonModel, asked: InferenceRequest) -> None:
    while not asked.stream.ended:
        await check_ready(model)


async def test_async_execute_and_async_is_ready_share_their_loop(tmp_path: Path) -> None:
    source = """
import asyncio
class TritonPythonModel:
    async def is_ready(self):
        return self.loop is asyncio.get_running_loop()
    async def execute(self, requests):
        self.loop = asyncio.get_running_loop()
        return [pb.InferenceResponse([pb.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        await ask(model)
        assert await check_ready(model)


async def test_a_word_that_does_not_come_in_time_is_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_model, "_READINESS_PATIENCE", 0.05)
    async with loaded(tmp_path) as models:
        model = await models.load("m", SAYS.format(kind="def", word="self.gate.wait()"))
        assert not await check_ready(model)
        assert await ask(model, [1]) == [[1]]


async def test_a_model_without_a_word_is_ready_while_it_lives(tmp_path: Path) -> None:
    source = """
import os
class TritonPythonModel:
    def initialize(self, args):
        mark = os.path.join(os.path.dirname(__file__), "started")
        if os.path.exists(mark): raise RuntimeError("only once")
        open(mark, "w").close()
    def execute(self, requests):
        os._exit(1)
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, first=PATIENCE)
        assert await check_ready(model)
        with pytest.raises(Exception, match="not healthy"):
            await ask(model)
        await asyncio.wait_for(_until_down(model), PATIENCE)
        assert not await check_ready(model)


async def _until_down(model: python_model.PythonModel) -> None:
    while model.is_ready:
        await asyncio.sleep(0)


async def test_a_model_asks_whether_another_is_ready(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        ready = np.array([[pb.is_model_ready("m"), pb.is_model_ready("nobody")]], np.int32)
        return [pb.InferenceResponse([pb.Tensor("OUT", ready)]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", PLAIN)
        asks = await models.load("asks", source)
        assert await ask(asks) == [[1, 0]]
        await ask(model, [0])
        assert await ask(asks) == [[0, 0]]
