"""The model the repository hands out."""

import asyncio
import threading

import pytest

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, SamplingParams
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.language_model import LanguageModel
from scheduler.local_engine import LocalEngine
from tests.fakes.token_runner import FakeRunner


def model(runner: FakeRunner) -> LanguageModel:
    options = EngineOptions()
    return LanguageModel(
        ModelConfig("m", backend="llm"),
        "1",
        LocalEngine(Engine(runner, options), options),
        tokenizer=None,
        template=None,
        max_model_len=256,
    )


def request() -> GenerateRequest:
    return GenerateRequest(id="r", prompt=[1, 2], sampling=SamplingParams(max_tokens=3, ignore_eos=True))


async def test_it_is_a_live_model_that_generates_and_says_what_it_takes_and_gives():
    served = model(FakeRunner())
    assert isinstance(served, LiveModel)
    assert served.config.decoupled
    assert [spec.name for spec in served.config.inputs if not spec.optional] == ["text_input"]
    assert served.config.outputs[0].name == "text_output"
    asked = request()
    served.generate(asked)
    assert len([event async for event in asked.stream]) == 3
    await served.close()


async def test_close_answers_what_was_taken_and_refuses_what_comes():
    gate = threading.Event()
    runner = FakeRunner(on_step=lambda batch: gate.wait(20))
    served = model(runner)
    asked = request()
    served.generate(asked)
    assert served.is_ready
    closing = asyncio.create_task(served.close())
    await asyncio.sleep(0)
    assert not served.is_ready
    with pytest.raises(ServingError) as refused:
        served.generate(request())
    assert refused.value.code is Code.UNAVAILABLE
    gate.set()
    await closing
    assert len([event async for event in asked.stream]) == 3
    assert runner.closed
