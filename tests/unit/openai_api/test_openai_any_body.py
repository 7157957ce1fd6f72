"""Whatever stands in a place of a request, the request is read or refused; nothing else happens."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from openai_api.options import OpenAIOptions
from openai_api.response_wire import read_response
from openai_api.wire import read_chat, read_completion

pytestmark = pytest.mark.slow
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SHARED = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "stop_token_ids": [1],
    "bad_words": ["x"],
    "seed": 1,
    "min_tokens": 1,
    "truncate_prompt_tokens": 5,
    "chat_template_kwargs": {"a": 1},
    "structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
CHAT = {
    **SHARED,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CALL]}},
    "documents": [{"title": "t"}],
    "logprobs": True,
    "top_logprobs": 1,
    "reasoning_effort": "low",
}
COMPLETION = {**SHARED, "prompt": ["hi", [1]], "logprobs": 1, "echo": True, "best_of": 1, "n": 1}
RESPONSE = {
    **SHARED,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"text": "t"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]},
    ],
    "instructions": "i",
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "max_output_tokens": 5,
    "truncation": "auto",
    "safety_identifier": "s",
}
VALUES = [
    None,
    True,
    -1,
    1,
    2.5,
    10**30,
    "",
    "x",
    "{",
    [],
    [None],
    [[]],
    [{}],
    {},
    {"type": "x"},
    {"a": None},
    {"5": []},
]
Path = tuple[str | int, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of everything inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inside:
        yield (*path, name)
        yield from places(item, (*path, name))


def changed(body: dict[str, Any], path: Path, value: Any) -> bytes:
    result = copy.deepcopy(body)
    target: Any = result
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return json.dumps(result).encode()


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_chat, CHAT),
        (read_chat, {**CHAT, "structured_outputs": None, "tool_choice": None, "response_format": FORMAT}),
        (read_completion, COMPLETION),
        (read_response, RESPONSE),
        (
            read_response,
            {**RESPONSE, "structured_outputs": None, "text": {"format": {**FORMAT["json_schema"], **FORMAT}}},
        ),
    ],
)
def test_any_value_in_any_place_is_read_or_refused_by_the_member_at_fault(
    read: Callable[[bytes, OpenAIOptions], object], body: dict[str, Any]
) -> None:
    read(json.dumps(body).encode(), OpenAIOptions())
    for path in places(body):
        for value in VALUES:
            try:
                read(changed(body, path, value), OpenAIOptions())
            except ServingError as error:
                assert error.code in (Code.INVALID, Code.UNSUPPORTED, Code.NOT_FOUND)
                assert error.reason == "invalid_json" or error.param, (path, value)
                assert len(error.message) < 1000
