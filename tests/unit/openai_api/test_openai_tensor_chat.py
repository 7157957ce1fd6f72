"""A model that speaks text in tensors answers chats where its config says so."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.tensor import Tensor
from tests.unit.openai_api.face import CHAT, USER, client_of

MESSAGES = TensorSpec("messages", "BYTES", (1,))
TEXT = TensorSpec("text_input", "BYTES", (1,))
OPTIONAL = (
    TensorSpec("stream", "BOOL", (1,), optional=True),
    TensorSpec("sampling_parameters", "BYTES", (1,), optional=True),
)


def piece(text: str, **more: Any) -> InferenceResponse:
    outputs = [Tensor("text_output", "BYTES", (1,), [text.encode()])]
    for name, value in more.items():
        is_text = isinstance(value, bytes)
        data = [value] if is_text else np.array([value], np.uint32)
        outputs.append(Tensor(name, "BYTES" if is_text else "UINT32", (1,), data))
    return InferenceResponse("custom", "1", outputs, final=False)


@dataclass
class Custom:
    """A model that is no language model, and keeps what it was asked."""

    answer: Callable[[InferenceRequest], None]
    inputs: tuple[TensorSpec, ...] = (TEXT, *OPTIONAL)
    parameters: dict[str, str] = field(default_factory=lambda: {"openai": "chat"})
    version: str = "1"
    requests: list[InferenceRequest] = field(default_factory=list)

    @property
    def config(self) -> ModelConfig:
        outputs = (TensorSpec("text_output", "BYTES", (-1,)),)
        return ModelConfig(
            "custom", backend="python", inputs=self.inputs, outputs=outputs, decoupled=True, parameters=self.parameters
        )

    def infer(self, request: InferenceRequest) -> None:
        self.requests.append(request)
        self.answer(request)

    async def close(self) -> None: ...

    def given(self, name: str) -> Any:
        (tensor,) = [each for each in self.requests[-1].inputs if each.name == name]
        value = tensor.as_numpy().flat[0]
        return value.decode() if isinstance(value, bytes) else bool(value)


def says(*pieces: InferenceResponse) -> Callable[[InferenceRequest], None]:
    def answer(request: InferenceRequest) -> None:
        for each in pieces:
            request.stream.put(each)
        request.stream.finish(InferenceResponse("custom", "1", []))

    return answer


HELLO = says(
    piece("hel", num_output_tokens=1), piece("lo", num_output_tokens=2, num_input_tokens=7, finish_reason=b"length")
)


async def test_its_texts_are_the_answer() -> None:
    model = Custom(HELLO)
    async with client_of(model) as client:
        answer = await client.chat(model="custom", temperature=0.5, max_tokens=9, stop="x")
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hello", "length")
    assert answer["usage"]["prompt_tokens"] == 7
    assert answer["usage"]["completion_tokens"] == 3
    assert (model.given("text_input"), model.given("stream")) == ("hi", False)
    assert json.loads(model.given("sampling_parameters")) == {"temperature": 0.5, "max_tokens": 9, "stop": ["x"]}


async def test_its_pieces_are_streamed_as_they_come() -> None:
    model = Custom(HELLO)
    async with client_of(model) as client:
        chunks = await client.chat_chunks(model="custom", stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "hel"}, {"content": "lo"}, {}]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["total_tokens"] == 10
    assert model.given("stream") is True


async def test_a_model_with_messages_gets_the_whole_conversation() -> None:
    model = Custom(says(piece("ok")), inputs=(MESSAGES,))
    conversation = [{"role": "system", "content": "be brief"}, *USER]
    async with client_of(model) as client:
        await client.chat(model="custom", messages=conversation)
    assert json.loads(model.given("messages")) == conversation


async def test_it_is_listed_and_need_not_be_named_where_it_is_alone() -> None:
    async with client_of(Custom(says(piece("ok")))) as client:
        listed = (await client.http.get("/v1/models")).json()["data"]
        assert [(card["id"], card["max_model_len"]) for card in listed] == [("custom", None)]
        assert (await client.http.get("/v1/models/custom")).json()["id"] == "custom"
        answer = await client.http.post(CHAT, json={"messages": USER})
        assert answer.json()["model"] == "custom"


async def test_a_model_whose_config_does_not_say_so_does_not_chat() -> None:
    async with client_of(Custom(says(piece("ok")), parameters={})) as client:
        answer = await client.post(CHAT, {"model": "custom", "messages": USER})
    assert answer.json()["error"]["code"] == "unsupported_endpoint"


async def test_its_errors_are_the_answer_or_the_last_event() -> None:
    def fails(request: InferenceRequest) -> None:
        request.stream.fail(ServingError(Code.INVALID, "not that"))

    def breaks(request: InferenceRequest) -> None:
        request.stream.put(piece("so"))
        request.stream.fail(ServingError(Code.INTERNAL, "it broke"))

    for streamed in (False, True):
        async with client_of(Custom(fails)) as client:
            answer = await client.post(CHAT, {"model": "custom", "messages": USER, "stream": streamed})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "not that")
    async with client_of(Custom(breaks)) as client:
        answer = await client.post(CHAT, {"model": "custom", "messages": USER, "stream": True})
    assert answer.status_code == 200
    assert '"so"' in answer.text
    assert "it broke" in answer.text


async def test_what_it_cannot_be_asked_is_refused() -> None:
    model = Custom(says(piece("ok")))
    async with client_of(model) as client:
        for members in ({"n": 2}, {"logprobs": True}, {"response_format": {"type": "json_object"}}):
            answer = await client.post(CHAT, {"model": "custom", "messages": USER, **members})
            assert answer.json()["error"]["code"] == "unsupported_parameter", answer.text
    assert model.requests == []


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("said", [[], [[]], [[Tensor("x", "BYTES", (1,), [b""])]]])
async def test_a_model_without_the_promised_output_is_an_error(said: list[list[Tensor]], streamed: bool) -> None:
    pieces = [InferenceResponse("custom", "1", outputs, final=False) for outputs in said]
    async with client_of(Custom(says(*pieces))) as client:
        answer = await client.post(CHAT, {"model": "custom", "messages": USER, "stream": streamed})
    assert answer.status_code == 500
    assert "gave no output 'text_output'" in answer.json()["error"]["message"]


async def test_a_caller_who_leaves_cancels_its_work() -> None:
    asked = asyncio.Event()
    model = Custom(lambda request: asked.set())
    async with client_of(model) as client:
        task = asyncio.create_task(client.post(CHAT, {"model": "custom", "messages": USER}))
        await asked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert model.requests[0].stream.cancelled


async def test_it_has_no_responses_and_says_where_it_answers() -> None:
    async with client_of(Custom(HELLO)) as client:
        status, error = await client.error("/v1/responses", {"model": "custom", "input": "hi"})
    assert (status, error["code"], error["param"]) == (400, "unsupported_endpoint", "model")
    assert "/v1/chat/completions" in error["message"]
