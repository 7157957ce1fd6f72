"""A language model asked through tensors: names, defaults and answers of Triton's vLLM backend."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from backends.api.base import EngineLoad
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest, InferenceResponse, RequestedOutput
from backends.api.statistics import Failure
from backends.api.tensor import Tensor
from scheduler.language_model import LanguageModel
from tests.unit.openai_api.scripted import TOKENIZER, Script, ScriptedModel, says, tokens


class ScriptedEngine:
    """A TokenEngine whose tokens are a test's."""

    is_ready = True
    load = EngineLoad()

    def __init__(self, script: Script) -> None:
        self.model = ScriptedModel(script)

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        self.model.check_together(requests)

    def generate(self, request: GenerateRequest) -> None:
        self.model.generate(request)

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[LanguageModel, ScriptedModel]]:
    engine = ScriptedEngine(script)
    model = LanguageModel(
        ModelConfig("chat", backend="llm"), "1", engine, tokenizer=TOKENIZER, template=None, max_model_len=64
    )
    yield model, engine.model
    await model.close()
    assert engine.model.num_running == 0


def ask(text: str | bytes, sampling: object = None, outputs: tuple[str, ...] = (), **flags: bool) -> InferenceRequest:
    content = text.encode() if isinstance(text, str) else text
    inputs = [Tensor("text_input", "BYTES", (1,), [content])]
    if sampling is not None:
        inputs.append(Tensor("sampling_parameters", "BYTES", (1,), [json.dumps(sampling).encode()]))
    inputs += [Tensor(name, "BOOL", (1,), np.array([value])) for name, value in flags.items()]
    return InferenceRequest("chat", "", inputs, [RequestedOutput(name) for name in outputs])


async def answers(model: LanguageModel, request: InferenceRequest) -> list[InferenceResponse]:
    model.infer(request)
    return [response async for response in request.stream]


def value(response: InferenceResponse, name: str) -> list[object]:
    (tensor,) = [tensor for tensor in response.outputs if tensor.name == name]
    return list(tensor.as_numpy())


async def test_a_plain_answer_is_one_final_response_that_begins_with_the_prompt():
    async with serving(says("one two")) as (model, _):
        (response,) = await answers(model, ask("count: "))
        assert [tensor.name for tensor in response.outputs] == ["text_output"]
        assert value(response, "text_output") == [b"count: one two"]
        assert response.final
        (response,) = await answers(model, ask("count: ", exclude_input_in_output=True))
        assert value(response, "text_output") == [b"one two"]


async def test_a_streamed_answer_comes_in_pieces_of_which_the_last_is_final():
    async with serving(says("one two")) as (model, _):
        responses = await answers(model, ask("count: ", stream=True, return_finish_reason=True))
        assert b"".join(value(each, "text_output")[0] for each in responses) == b"one two"
        assert [each.final for each in responses] == [False] * (len(responses) - 1) + [True]
        assert len(responses) == 8
        reasons = [value(each, "finish_reason")[0] for each in responses]
        assert reasons == [b"None"] * 7 + [b"stop"]


async def test_details_are_given_where_a_flag_or_a_requested_output_asks():
    async with serving(says("ab")) as (model, _):
        flags = {"return_num_input_tokens": True, "return_num_output_tokens": True, "return_cumulative_logprob": True}
        (response,) = await answers(model, ask("xyz", **flags))
        assert value(response, "num_input_tokens") == [3]
        assert value(response, "num_output_tokens") == [3]  # the end-of-sequence token is one
        assert value(response, "cumulative_logprob") == [-0.75]
        (response,) = await answers(model, ask("xyz", outputs=("num_input_tokens",)))
        assert [tensor.name for tensor in response.outputs] == ["num_input_tokens"]


async def test_token_log_probabilities_are_json_a_token():
    async with serving(says("ab")) as (model, _):
        (response,) = await answers(model, ask("x", {"logprobs": 1}, return_logprobs=True))
        entries = json.loads(value(response, "logprobs")[0])  # type: ignore[arg-type]
        letter = TOKENIZER.encode("a")[0]
        assert entries[0] == {str(letter): {"logprob": -0.25, "rank": 1, "decoded_token": "a"}}
        (response,) = await answers(model, ask("x", return_logprobs=True))
        assert value(response, "logprobs") == [b"null"]


async def test_a_stop_string_ends_the_answer_and_the_engines_work():
    async with serving(says("one two three")) as (model, engine):
        asked = ask("x", {"stop": [" t"], "max_tokens": 50}, exclude_input_in_output=True, return_finish_reason=True)
        (response,) = await answers(model, asked)
        assert value(response, "text_output") == [b"one"]
        assert value(response, "finish_reason") == [b"stop"]
    assert engine.num_aborted == 1


async def test_several_choices_are_elements_of_one_answer_and_differ_in_their_seeds():
    async with serving(says("ab")) as (model, engine):
        (response,) = await answers(model, ask("x", {"n": 3, "seed": 7}, exclude_input_in_output=True))
        assert value(response, "text_output") == [b"ab", b"ab", b"ab"]
        assert [request.sampling.seed for request in engine.requests] == [7, 8, 9]


async def test_more_choices_than_the_queue_can_hold_are_refused_before_any_is_begun():
    async with serving(says("ab")) as (model, engine):
        engine.max_together = 2
        with pytest.raises(ServingError, match="at most 2") as refused:
            await answers(model, ask("x", {"n": 3}))
        assert refused.value.code is Code.INVALID
        assert engine.requests == []


async def test_numbers_may_come_as_text_and_from_request_parameters():
    async with serving(says("abcdef")) as (model, engine):
        await answers(model, ask("x", {"temperature": "0.5", "max_tokens": "3", "ignore_eos": "true"}))
        asked = ask("x")
        asked.parameters.update({"temperature": 0, "max_tokens": 2, "some_header": "ignored"})
        await answers(model, asked)
        first, second = (request.sampling for request in engine.requests)
        assert (first.temperature, first.max_tokens, first.ignore_eos) == (0.5, 3, True)
        assert (second.temperature, second.max_tokens) == (0.0, 2)


async def test_an_answer_never_outgrows_the_models_length():
    async with serving(says("a")) as (model, engine):
        await answers(model, ask("x" * 60, {"max_tokens": 50}))
        await answers(model, ask("x" * 60, {"max_tokens": None}))
        await answers(model, ask("x" * 100, {"truncate_prompt_tokens": 10}))
        assert [request.sampling.max_tokens for request in engine.requests] == [4, 4, 16]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ask("x", {"temprature": 1}), "unknown field `temprature`"),
        (ask("x", {"temperature": -1}), r"Expected `float` >= 0.* - at `\$.temperature`"),
        (ask("x", {"temperature": "nan"}), r"temperature"),
        (ask("x", {"temperature": 1e39}), r"Expected `float` <= 1000000.0 - at `\$.temperature`"),
        (ask("x", {"repetition_penalty": 1e-38}), r"Expected `float` >= 1e-06 - at `\$.repetition_penalty`"),
        (ask("x", {"repetition_penalty": "1e39"}), r"Expected `float` <= 1000000.0 - at `\$.repetition_penalty`"),
        (ask("x", {"top_p": "high"}), r"top_p"),
        (ask("x", [1]), "Expected `object`"),
        (ask("x", {"stop_token_ids": [100_000]}), "token id 100000 is outside"),
        (ask("x", {"min_tokens": 20}), "Expected min_tokens <= max_tokens 16"),
        (ask("x", {"n": 2}, stream=True), "expected n = 1"),
        (ask("x", stream=True, exclude_input_in_output=False), "'exclude_input_in_output' is false"),
        (ask(b"\xff"), "input 'text_input': expected UTF-8"),
        (ask(""), "at least one token"),
        (ask("x" * 64), "maximum context length is 64"),
        (ask("x" * 100_000), "maximum context length is 64"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(request_: InferenceRequest, text: str):
    async with serving(says("a")) as (model, engine):
        with pytest.raises(ServingError, match=text) as refused:
            await answers(model, request_)
        assert refused.value.code is Code.INVALID
        assert engine.requests == []
        assert model.statistics.snapshot().failures[Failure.OTHER] == 1


async def test_a_failure_in_the_engine_reaches_the_caller_and_is_counted():
    async with serving(tokens(ServingError(Code.INTERNAL, "it broke"))) as (model, _):
        with pytest.raises(ServingError, match="it broke"):
            await answers(model, ask("x"))
        assert model.statistics.snapshot().failures[Failure.BACKEND] == 1


async def test_a_caller_who_leaves_stops_the_engine():
    async with serving(says("a" * 40)) as (model, engine):
        asked = ask("x", {"max_tokens": 40}, stream=True)
        model.infer(asked)
        await anext(asked.stream)
        asked.stream.cancel()
        await engine.until_running(0)
        assert engine.num_aborted == 1
    assert model.statistics.snapshot().failures[Failure.CANCELED] == 1


async def test_close_answers_what_was_taken_and_refuses_what_comes():
    async with serving(says("ab")) as (model, _):
        asked = ask("x")
        model.infer(asked)
        await model.close()
        assert value(await anext(asked.stream), "text_output") == [b"xab"]
        with pytest.raises(ServingError, match="is being unloaded"):
            model.infer(ask("x"))
        assert model.statistics.snapshot().success.count == 1
