"""What `/v1/responses` takes: items as the messages of a chat, settings, and what is refused."""

import json

import pytest

from openai_api.options import OpenAIOptions
from openai_api.response_wire import read_response
from tests.unit.openai_api.face import client_of
from tests.unit.openai_api.scripted import ScriptedModel, says

PATH = "/v1/responses"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "weather", "parameters": CITY}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}', "id": "fc_1"}
OTHER = {**CALL, "call_id": "c2"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]}
SAID = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}


def messages_of(**members) -> list[dict]:
    body = json.dumps({"model": "chat", **members}).encode()
    return read_response(body, OpenAIOptions()).chat.messages


def call(call_id: str) -> dict:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


TEXT = [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("given_input", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
        ([{"type": "message", "role": "developer", "content": "x"}], [{"role": "developer", "content": "x"}]),
        ([{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], [{"role": "user", "content": TEXT}]),
        ([SAID, SAID], [{"role": "assistant", "content": TEXT}] * 2),
        ([CALL, OTHER], [{"role": "assistant", "content": None, "tool_calls": [call("c1"), call("c2")]}]),
        ([SAID, CALL], [{"role": "assistant", "content": TEXT, "tool_calls": [call("c1")]}]),
        (
            [THOUGHT, SAID, CALL, RESULT],
            [
                {"role": "assistant", "content": TEXT, "reasoning_content": "hmm", "tool_calls": [call("c1")]},
                {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            ],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "brief"}]}, CALL],
            [{"role": "assistant", "content": None, "reasoning_content": "brief", "tool_calls": [call("c1")]}],
        ),
    ],
)
def test_items_are_the_messages_of_a_chat(given_input, messages):
    assert messages_of(input=given_input) == messages
    assert messages_of(input=given_input, instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        *messages,
    ]


async def test_settings_reach_the_engine_and_come_back():
    model = ScriptedModel(says("x"))
    wanted = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    body = {
        "input": "hi",
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 7,
        "seed": 3,
        "text": {"format": wanted},
    }
    async with client_of(model) as client:
        response = (await client.post(PATH, {**body, "reasoning": {"effort": "low"}, "truncation": "auto"})).json()
    sampling = model.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (0.5, 0.25, 7, 3)
    assert sampling.grammar is not None
    assert json.loads(sampling.grammar.text) == CITY
    assert response["text"] == {"format": {**wanted, "description": None}}
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert (response["temperature"], response["top_p"], response["truncation"]) == (0.5, 0.25, "auto")


async def test_a_json_object_is_asked_for_in_text():
    model = ScriptedModel(says("{}"))
    async with client_of(model) as client:
        response = (await client.post(PATH, {"input": "hi", "text": {"format": {"type": "json_object"}}})).json()
    assert model.requests[0].sampling.grammar is not None
    assert response["text"] == {"format": {"type": "json_object"}}


async def test_a_long_input_is_cut_where_that_is_wanted():
    model = ScriptedModel(says("x"), max_model_len=64)
    async with client_of(model) as client:
        assert (await client.post(PATH, {"input": "y" * 100, "truncation": "auto"})).status_code == 200
        status, error = await client.error(PATH, {"input": "y" * 100})
    assert len(model.requests[0].prompt) == 63
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "maximum context length is 64 tokens" in error["message"]


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": 1}, "invalid_type", "input"),
        ({"input": [1]}, "invalid_type", "input[0]"),
        ({"input": [{}]}, "missing_required_parameter", "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"type": "message", "content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "unsupported_value",
            "input[0].content[0]",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_value", "input[0]"),
        ({"input": [{"type": "web_search_call"}]}, "unsupported_value", "input[0].type"),
        ({"input": [{**CALL, "arguments": {}}]}, "invalid_type", "input[0].arguments"),
        ({"input": [{**CALL, "call_id": None}]}, "missing_required_parameter", "input[0].call_id"),
        ({"input": [{**RESULT, "output": None}]}, "missing_required_parameter", "input[0].output"),
        ({"input": [{"type": "reasoning", "content": ["x"]}]}, "invalid_type", "input[0].content[0]"),
        ({"input": "x", "instructions": 1}, "invalid_type", "instructions"),
        ({"input": "x", "max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        ({"input": "x", "temperature": 3}, "decimal_above_max_value", "temperature"),
        ({"input": "x", "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
        ({"input": "x", "include": ["all"]}, "invalid_value", "include[0]"),
        ({"input": "x", "reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
        ({"input": "x", "truncation": "left"}, "invalid_value", "truncation"),
        ({"input": "x", "stream_options": {}}, "invalid_value", "stream_options"),
        ({"input": "x", "background": True}, "unsupported_parameter", "background"),
        ({"input": "x", "conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"input": "x", "prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"input": "x", "n": 2}, "unsupported_parameter", "n"),
        ({"input": "x", "echo": True}, "unsupported_parameter", "echo"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"input": "x", "tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"input": "x", "tools": [TOOL, TOOL]}, "invalid_value", "tools[1].name"),
        ({"input": "x", "tool_choice": "required"}, "invalid_value", "tool_choice"),
        (
            {"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}},
            "invalid_value",
            "tool_choice",
        ),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}},
            "missing_required_parameter",
            "text.format.schema",
        ),
        (
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
            "invalid_json_schema",
            "text.format",
        ),
        (
            {"input": "x", "tools": [{**TOOL, "parameters": {"type": "object", "not": {}}}], "tool_choice": "required"},
            "invalid_json_schema",
            "tools[0].parameters",
        ),
    ],
)
async def test_a_wrong_request_is_a_400_that_says_where(members, code, param):
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        status, error = await client.error(PATH, members)
    assert (status, error["code"], error["param"]) == (400, code, param)
    assert not model.requests


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
async def test_no_response_is_kept(method, path):
    async with client_of(ScriptedModel(says("x"))) as client:
        got = await client.http.request(method, path)
        status, error = await client.error(PATH, {"input": "x", "previous_response_id": "resp_1"})
        kept = (await client.post(PATH, {"input": "x", "store": True})).json()["store"]
    assert (got.status_code, got.json()["error"]["code"]) == (404, "not_found")
    assert (status, error["code"], error["param"]) == (404, "previous_response_not_found", "previous_response_id")
    assert "input" in error["message"]
    assert kept is False
