"""The real `openai` client's `responses` against the OpenAI face on a loopback port."""

import json

import openai
import pytest
from pydantic import BaseModel

from backends.api.errors import Code, ServingError
from tests.unit.openai_api.scripted import CHATML, ScriptedModel, says, tokens, tokens_of
from tests.wire.openai_server import wire_server

THINKING = CHATML + "{# <think> #}"


class City(BaseModel):
    city: str


@pytest.fixture(scope="module")
def server():
    with wire_server(keep_alive_interval=0.005) as running:
        yield running


def test_a_response_and_its_thoughts(server, client):
    server.serve(ScriptedModel(says("<think>hmm</think>Hello wörld 🎉"), chat_template=THINKING))
    response = client.responses.create(model="chat", input="hi", instructions="Be brief.")
    assert response.output_text == "Hello wörld 🎉"
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.output[0].content[0].text == "hmm"
    assert (response.status, response.instructions) == ("completed", "Be brief.")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


@pytest.mark.parametrize("per_event", [1, 7])
def test_the_stream_helper_adds_up_what_the_plain_response_says(server, client, per_event):
    server.serve(ScriptedModel(says("<think>hmm</think>Hello"), chat_template=THINKING, tokens_per_event=per_event))
    body = {"model": "chat", "input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    plain = client.responses.create(**body)
    with client.responses.stream(**body) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == plain.output_text == "Hello"
    assert final.output[1].content[0].logprobs == plain.output[1].content[0].logprobs
    assert final.usage == plain.usage


def test_plain_iteration_sees_every_event_in_order(server, client):
    server.serve(ScriptedModel(says("Hi")))
    events = list(client.responses.create(model="chat", input="hi", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == "Hi"


def test_parse_gives_a_pydantic_object(server, client):
    server.serve(ScriptedModel(says('{"city": "Rome"}')))
    assert client.responses.parse(model="chat", input="hi", text_format=City).output_parsed == City(city="Rome")
    with client.responses.stream(model="chat", input="hi", text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(city="Rome")


def test_a_conversation_with_a_call_and_its_result(server, client):
    server.serve(ScriptedModel(says('{"city": "Rome"}')))
    tool = openai.pydantic_function_tool(City, name="weather")["function"] | {"type": "function"}
    body = {"model": "chat", "tools": [tool], "tool_choice": {"type": "function", "name": "weather"}}
    asked = [{"role": "user", "content": "hi"}]
    response = client.responses.parse(input=asked, **body)
    (call,) = response.output
    assert call.parsed_arguments == {"city": "Rome"}
    with client.responses.stream(input=asked, **body) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in kinds
    assert (streamed.name, json.loads(streamed.arguments)) == ("weather", {"city": "Rome"})
    server.serve(ScriptedModel(says("It is sunny.")))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    answer = client.responses.create(model="chat", tools=[tool], input=[*asked, *response.output, result])
    assert answer.output_text == "It is sunny."


def test_what_max_output_tokens_cuts_is_incomplete(server, client):
    server.serve(ScriptedModel(says("Hello")))
    response = client.responses.create(model="chat", input="hi", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "He"
    last = list(client.responses.create(model="chat", input="hi", max_output_tokens=2, stream=True))[-1]
    assert (last.type, last.response.output_text) == ("response.incomplete", "He")


def test_an_engine_that_fails_in_mid_stream_is_a_failed_response(server, client):
    failure = ServingError(Code.UNAVAILABLE, "engine process ended (signal 9)", reason="engine_ended")
    server.serve(ScriptedModel(tokens(*tokens_of("abc"), failure)))
    last = list(client.responses.create(model="chat", input="hi", stream=True))[-1]
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "model_not_ready")
    assert last.response.output_text == "abc"


def test_nothing_is_kept(server, client):
    server.serve(ScriptedModel(says("Hello")))
    response = client.responses.create(model="chat", input="hi", store=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="chat", input="more", previous_response_id=response.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
