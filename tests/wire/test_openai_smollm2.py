"""A real model behind the OpenAI face: structured output, forced tools and their errors, with the `openai` client."""

import asyncio
import json

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.wire.smollm2 import smollm2_server

pytestmark = pytest.mark.slow
USER = [{"role": "user", "content": "Tell me about a person and the weather in Paris."}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "$defs": {"City": {"type": "string", "maxLength": 20}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("weather", "news")]


class Home(BaseModel):
    city: str = Field(max_length=20)
    zip: str | None = Field(max_length=8)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    homes: list[Home] = Field(max_length=2)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with smollm2_server(tmp_path_factory.mktemp("model")) as running:
        yield running


def test_parse_gives_a_valid_object(client):
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="chat", messages=USER, response_format=Person, seed=seed, max_tokens=300
        )
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(answer.choices[0].message.parsed, Person)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "news"}}])
def test_forced_calls_satisfy_their_schemas_streamed_and_whole(client, choice):
    body = {"model": "chat", "messages": USER, "tools": TOOLS, "tool_choice": choice, "temperature": 0}
    for max_tokens in (4, 16, 700):
        plain = client.chat.completions.create(**body, max_tokens=max_tokens).choices[0]
        with client.chat.completions.stream(**body, max_tokens=max_tokens) as stream:
            try:
                streamed = stream.until_done().get_final_completion().choices[0]
            except openai.LengthFinishReasonError as error:
                streamed = error.completion.choices[0]
        assert streamed.finish_reason == plain.finish_reason
        calls = [(call.function.name, call.function.arguments) for call in plain.message.tool_calls or []]
        assert [(call.function.name, call.function.arguments) for call in streamed.message.tool_calls or []] == calls
        if plain.finish_reason != "length":
            assert calls
            assert plain.finish_reason == ("tool_calls" if choice == "required" else "stop")
            for _, arguments in calls:
                jsonschema.validate(json.loads(arguments), WEATHER)


def test_one_call_only(client):
    answer = client.chat.completions.create(
        model="chat", messages=USER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=100
    )
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_bad_schemas_disturb_no_stream(server):
    async with openai.AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0, timeout=300) as client:

        async def free() -> str:
            answer = await client.chat.completions.create(model="chat", messages=USER, max_tokens=60, temperature=0)
            return answer.choices[0].message.content

        async def bad(schema) -> None:
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="chat", messages=USER, response_format=wanted)
            assert caught.value.code == "invalid_json_schema"

        alone = await free()
        schemas = [{"type": "strin"}, {"enum": []}, {"not": {}}, {"type": "string", "pattern": "a*" * 2000}]
        together = await asyncio.gather(free(), *[bad(schema) for schema in schemas])
        assert together[0] == alone


def test_choices_regexes_and_any_object(client):
    def ask(**extra) -> str:
        answer = client.chat.completions.create(model="chat", messages=USER, max_tokens=200, extra_body=extra)
        assert answer.choices[0].finish_reason in ("stop", "length")
        return answer.choices[0].message.content

    assert ask(guided_choice=["sun", "rain"]) in ("sun", "rain")
    assert ask(structured_outputs={"regex": "[0-9]{3}-[0-9]{4}"}).replace("-", "").isdigit()
    texts = [ask(response_format={"type": "json_object"}, seed=seed) for seed in range(3)]
    assert all(text.lstrip().startswith("{") for text in texts)
