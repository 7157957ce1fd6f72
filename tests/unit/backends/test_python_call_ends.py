"""When a custom model's call to another model ends that the model does not read to its end."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.backends.python_models import DECOUPLED, PATIENCE, ask, loaded
from tests.unit.openai_api.scripted import says
from tests.unit.scheduler.test_language_face import serving

pytestmark = pytest.mark.slow  # starts processes

# counts up to IN, for ever where that is negative
COUNTS = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender, end, x = r.get_response_sender(), int(r.inputs()[0].as_numpy().flat[0]), 0
            while x != end and not sender.is_cancelled():
                sender.send(pb.InferenceResponse([pb.Tensor("OUT", np.array([[x]], np.int32))]))
                x += 1
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLER = """
import threading
FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def call(x):
    return pb.InferenceRequest(model_name="counts", requested_output_names=["OUT"],
                               inputs=[pb.Tensor("IN", np.array([[x]], np.int32))])
def values(parts, most):
    found = []
    for part in parts:
        found.append(int(part.output_tensors()[0].as_numpy().flat[0]))
        if len(found) == most:
            break
    return found
async def values_async(parts, most):
    found = []
    async for part in parts:
        found.append(int(part.output_tensors()[0].as_numpy().flat[0]))
        if len(found) == most:
            break
    return found
def response(found):
    return pb.InferenceResponse([pb.Tensor("OUT", np.array([found], np.int32))])
"""
BREAKS_OFF = {
    "sync": """
class TritonPythonModel:
    def execute(self, requests):
        return [response(values(call(-1).exec(decoupled=True), 2)) for r in requests]
""",
    "async": """
class TritonPythonModel:
    async def execute(self, requests):
        return [response(await values_async(await call(-1).async_exec(decoupled=True), 2)) for r in requests]
""",
    "kept": """
class TritonPythonModel:
    def execute(self, requests):
        self.kept = call(-1).exec(decoupled=True)
        self.reading = iter(self.kept)
        return [response([next(self.reading).output_tensors()[0].as_numpy().flat[0] for _ in range(2)])]
""",
    "never read": """
class TritonPythonModel:
    def execute(self, requests):
        self.kept = call(-1).exec(decoupled=True)
        return [response([0, 1])]
""",
}


@pytest.mark.parametrize("way", BREAKS_OFF)
async def test_a_stream_that_its_caller_has_stopped_reading_ends_with_the_caller(tmp_path: Path, way: str) -> None:
    async with loaded(tmp_path) as models:
        counts = await models.load("counts", COUNTS, DECOUPLED)
        caller = await models.load("caller", CALLER + BREAKS_OFF[way])
        for _ in range(3):
            assert await ask(caller) == [[0, 1]]
            assert await ask(counts, [2]) == [[0], [1]]


async def test_a_stream_that_is_dropped_ends_while_its_caller_goes_on(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        found = values(call(-1).exec(decoupled=True), 2)
        return [response(found + values(call(3).exec(decoupled=True), -1)) for r in requests]
"""
    async with loaded(tmp_path) as models:
        await models.load("counts", COUNTS, DECOUPLED)
        caller = await models.load("caller", CALLER + source)
        assert await ask(caller) == [[0, 1, 0, 1, 2]]


async def test_a_stream_is_read_on_after_execute_until_the_final_flag(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            parts = call(100).exec(decoupled=True)
            threading.Thread(target=self.read, args=(parts, r.get_response_sender())).start()
    def read(self, parts, sender):
        sender.send(response(values(parts, -1)), FINAL)
"""
    async with loaded(tmp_path) as models:
        await models.load("counts", COUNTS, DECOUPLED)
        caller = await models.load("caller", CALLER + source, DECOUPLED)
        assert await ask(caller) == [list(range(100))]


async def test_the_final_flag_ends_a_stream_while_execute_goes_on(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            parts = call(-1).exec(decoupled=True)
            r.get_response_sender().send(response([1]), FINAL)
            for part in parts:
                pass
"""
    async with loaded(tmp_path) as models:
        counts = await models.load("counts", COUNTS, DECOUPLED)
        caller = await models.load("caller", CALLER + source, DECOUPLED)
        for _ in range(2):
            assert await ask(caller) == [[1]]
        assert await ask(counts, [1]) == [[0]]


async def test_a_call_made_after_the_final_flag_is_answered(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy().flat[0]:
            requests[0].get_response_sender().send(response(self.found), FINAL)
            return
        requests[0].get_response_sender().send(flags=FINAL)
        self.found = values(call(3).exec(decoupled=True), -1)
"""
    async with loaded(tmp_path) as models:
        await models.load("counts", COUNTS, DECOUPLED)
        caller = await models.load("caller", CALLER + source, DECOUPLED)
        assert await ask(caller, [0]) == []
        assert await ask(caller, [1]) == [[0, 1, 2]]


async def test_a_call_that_nobody_awaits_is_answered_while_its_caller_goes_on(tmp_path: Path) -> None:
    source = """
import asyncio, gc
class TritonPythonModel:
    async def execute(self, requests):
        done = asyncio.Event()
        async def background():
            parts = await call(200).async_exec(decoupled=True)
            self.found = await values_async(parts, -1)
            done.set()
        asyncio.get_running_loop().create_task(background())
        while not done.is_set():
            gc.collect()
            await asyncio.sleep(0)
        return [response(self.found) for r in requests]
"""
    async with loaded(tmp_path) as models:
        await models.load("counts", COUNTS, DECOUPLED)
        caller = await models.load("caller", CALLER + source)
        assert await ask(caller) == [list(range(200))]


async def test_a_generation_that_its_caller_has_stopped_reading_ends_with_the_caller(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.Tensor("text_input", np.array([b"x"], dtype=object)), pb.Tensor("stream", np.array([True]))]
        asked = pb.InferenceRequest(model_name="chat", inputs=inputs, requested_output_names=["text_output"])
        for part in asked.exec(decoupled=True):
            break
        return [response([1]) for r in requests]
"""
    async with loaded(tmp_path) as models, serving(says("a long answer")) as (chat, engine):
        engine.gate = asyncio.Semaphore(3)  # tokens, and then it waits to be cancelled
        models.repository.models["chat"] = chat
        caller = await models.load("caller", CALLER + source)
        assert await ask(caller) == [[1]]
        await asyncio.wait_for(engine.until_running(0), PATIENCE)
        assert engine.num_aborted == 1
