"""The `openai` client's own helpers for structured output and tools, over scripted models."""

import json

import openai
import pytest
from pydantic import BaseModel

from tests.unit.openai_api.scripted import CHATML, ScriptedModel, says
from tests.wire.openai_server import wire_server

USER = [{"role": "user", "content": "hi"}]
HERMES = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + CHATML


class City(BaseModel):
    city: str


class Address(BaseModel):
    city: str
    zip: str | None


class Person(BaseModel):
    name: str
    age: int
    homes: list[Address]


@pytest.fixture(scope="module")
def server():
    with wire_server() as running:
        yield running


def tools(*names: str) -> list:
    return [openai.pydantic_function_tool(City, name=name) for name in names]


def test_parse_gives_a_pydantic_object(server, client):
    person = Person(name="Ann", age=3, homes=[Address(city="Rome", zip=None)])
    model = server.serve(ScriptedModel(says(person.model_dump_json())))
    answer = client.chat.completions.parse(model="chat", messages=USER, response_format=Person)
    assert answer.choices[0].message.parsed == person
    grammar = model.requests[0].sampling.grammar
    assert grammar is not None
    assert "homes" in json.loads(grammar.text)["properties"]


@pytest.mark.parametrize("per_event", [1, 7])
def test_the_stream_helper_adds_calls_up(server, client, per_event):
    text = '[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "news", "parameters": {"city": "Oslo"}}]'
    server.serve(ScriptedModel(says(text), tokens_per_event=per_event))
    body = {"model": "chat", "messages": USER, "tools": tools("weather", "news"), "tool_choice": "required"}
    with client.chat.completions.stream(**body) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_completion().choices[0]
    plain = client.chat.completions.create(**body).choices[0]
    for choice in (streamed, plain):
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
        assert calls == [("weather", {"city": "Rome"}), ("news", {"city": "Oslo"})]
        assert choice.finish_reason == "tool_calls"
    assert "tool_calls.function.arguments.delta" in kinds


def test_a_conversation_with_calls_and_their_results(server, client):
    says_call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    server.serve(ScriptedModel(says(says_call), chat_template=HERMES))
    body = {"model": "chat", "tools": tools("weather")}
    message = client.chat.completions.create(messages=USER, **body).choices[0].message
    assert message.content is None
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    server.serve(ScriptedModel(says("It is sunny."), chat_template=HERMES))
    answer = client.chat.completions.create(messages=[*USER, message.model_dump(), result], **body)
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"


def test_a_bad_schema_is_the_clients_bad_request(server, client):
    server.serve(ScriptedModel(says("x")))
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="chat", messages=USER, response_format=wanted)
    assert (caught.value.code, caught.value.param) == ("invalid_json_schema", "response_format")
    assert "not" in caught.value.message
