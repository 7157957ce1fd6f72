"""`/v1/responses`: items in, items out, and the events in which they come."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from openai_api.calls import CallPiece
from openai_api.choice import Delta
from openai_api.options import OpenAIOptions
from openai_api.response_items import ResponseItems
from openai_api.response_wire import read_response
from tests.unit.openai_api.face import client_of, strict_json
from tests.unit.openai_api.scripted import CHATML, ScriptedModel, says, tokens, tokens_of

PATH = "/v1/responses"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "weather", "parameters": CITY}
NAMED = {"type": "function", "name": "weather"}
THINKING = CHATML + "{# <think> #}"
HERMES = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + CHATML
CALLED = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
TWO = '[{"name": "weather", "parameters": {"city": "Rome"}}, {"name": "weather", "parameters": {"city": "Oslo"}}]'


def events_of(body: bytes) -> list[dict]:
    """The events of a whole stream: named as they say, numbered without gaps."""
    *parts, done, end = body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    found = []
    for number, part in enumerate(parts):
        name, data = part.split(b"\n")
        event = strict_json(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        assert event["sequence_number"] == number
        found.append(event)
    return found


def built(events: list[dict]) -> list[dict]:
    """The output as a client adds it up, item by item; the laws of the order are checked on the way."""
    output: list[dict] = []
    open_item: dict | None = None
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            assert event["output_index"] == len(output)
            open_item = event["item"]
            assert open_item["status"] == "in_progress"
        elif kind == "output_item.done":
            assert open_item is not None
            assert event["item"] == {**open_item, "status": event["item"]["status"]}
            output.append(event["item"])
            open_item = None
        else:
            assert open_item is not None
            assert (event["item_id"], event["output_index"]) == (open_item["id"], len(output))
            _grow(open_item, kind, event)
    assert open_item is None
    return output


def _grow(item: dict, kind: str, event: dict) -> None:
    match kind.split("."):
        case ["content_part", "added"]:
            assert item["content"] == []
            item["content"].append(event["part"])
        case ["content_part", "done"]:
            assert event["part"] == item["content"][0]
        case ["function_call_arguments", "delta"]:
            item["arguments"] += event["delta"]
        case ["function_call_arguments", "done"]:
            assert (event["name"], event["arguments"]) == (item["name"], item["arguments"])
        case [_, "delta"]:
            part = item["content"][0]
            part["text"] += event["delta"]
            part.get("logprobs", []).extend(event.get("logprobs", []))
        case [_, "done"]:
            part = item["content"][0]
            assert event["text"] == part["text"]
            if "logprobs" in part:  # the end of a sequence has one, and no delta
                part["logprobs"] = event["logprobs"]


async def both(script, template=CHATML, **members):
    """(plain response, streamed response, the events between the first two and the last)"""
    async with client_of(ScriptedModel(script, chat_template=template)) as client:
        plain = await client.post(PATH, {"input": "hi", **members})
        streamed = await client.post(PATH, {"input": "hi", "stream": True, **members})
    assert plain.status_code == 200, plain.text
    created, in_progress, *events, last = events_of(streamed.content)
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert created["response"]["output"] == []
    assert last["type"] == "response." + last["response"]["status"]
    return strict_json(plain.content), last["response"], events


def nameless(output: list[dict]) -> list[dict]:
    """Items without what is drawn anew for each."""
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


async def test_a_response_has_what_clients_require():
    plain, streamed, events = await both(says("Hello"), max_output_tokens=50, metadata={"a": "b"})
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 5,
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    for response in (plain, streamed):
        assert response["id"].startswith("resp_")
        assert (response["object"], response["status"], response["model"]) == ("response", "completed", "chat")
        assert nameless(response["output"]) == [
            {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
        ]
        assert response["usage"]["output_tokens"] == 6
        assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + 6
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
        assert (response["max_output_tokens"], response["metadata"], response["store"]) == (50, {"a": "b"}, False)
        assert (response["error"], response["incomplete_details"]) == (None, None)
        assert response["completed_at"] >= response["created_at"]
    assert plain.keys() == streamed.keys()


@pytest.mark.parametrize(
    ("text", "template", "members", "kinds"),
    [
        ("Hello wörld 🎉", CHATML, {}, ["message"]),
        ("", CHATML, {}, ["message"]),
        ("<think>hmm</think>\nYes", THINKING, {}, ["reasoning", "message"]),
        (CALLED, HERMES, {"tools": [TOOL]}, ["function_call"]),
        (f"Let me see. {CALLED}{CALLED}", HERMES, {"tools": [TOOL]}, ["message", "function_call", "function_call"]),
        (
            f"<think>a</think>b {CALLED}",
            HERMES + "{# <think> #}",
            {"tools": [TOOL]},
            ["reasoning", "message", "function_call"],
        ),
        (TWO, CHATML, {"tools": [TOOL], "tool_choice": "required"}, ["function_call", "function_call"]),
        ('{"city": "Rome"}', CHATML, {"tools": [TOOL], "tool_choice": NAMED}, ["function_call"]),
        (
            "Hello",
            CHATML,
            {"tools": [], "tool_choice": "auto", "include": ["message.output_text.logprobs"]},
            ["message"],
        ),
        ("<think>hmm</think>Yes", THINKING, {"top_logprobs": 2}, ["reasoning", "message"]),
    ],
)
async def test_the_plain_output_is_what_the_events_add_up_to(text, template, members, kinds):
    plain, streamed, events = await both(says(text), template, **members)
    assert [item["type"] for item in plain["output"]] == kinds
    assert built(events) == streamed["output"]
    assert nameless(streamed["output"]) == nameless(plain["output"])
    assert streamed["usage"] == plain["usage"]


@pytest.mark.parametrize(("limit", "kind"), [(9, "reasoning"), (20, "message")])
async def test_a_response_that_is_cut_says_so(limit, kind):
    plain, streamed, events = await both(says("<think>hmm</think>Yes"), THINKING, max_output_tokens=limit)
    for response in (plain, streamed):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert (response["output"][-1]["type"], response["output"][-1]["status"]) == (kind, "incomplete")
        assert response["completed_at"] is None
        assert response["usage"]["output_tokens"] == limit
    assert built(events) == streamed["output"]


async def test_log_probabilities_are_those_of_what_is_said():
    plain, _, events = await both(says("<think>hmm</think>Yes"), THINKING, top_logprobs=1)
    entries = plain["output"][1]["content"][0]["logprobs"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).startswith(b"Yes")
    assert all(len(entry["top_logprobs"]) == 1 for entry in entries)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [len(event["logprobs"]) for event in deltas] == [1, 1, 1]


async def test_hidden_reasoning_has_no_item_and_is_counted():
    plain, streamed, _ = await both(says("<think>hmm</think>Yes"), THINKING, include_reasoning=False, top_logprobs=0)
    for response in (plain, streamed):
        assert [item["type"] for item in response["output"]] == ["message"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 3


async def test_a_failure_is_the_last_event_with_what_was_said_before():
    failure = ServingError(Code.UNAVAILABLE, "engine process ended (signal 9)", reason="engine_ended")
    async with client_of(ScriptedModel(tokens(*tokens_of("abc"), failure))) as client:
        plain = await client.post(PATH, {"input": "hi"})
        body = (await client.post(PATH, {"input": "hi", "stream": True})).content
    assert (plain.status_code, plain.json()["error"]["code"]) == (503, "model_not_ready")
    assert b"[DONE]" not in body
    *events, last = events_of(body + b"data: [DONE]\n\n")
    assert last["type"] == "response.failed"
    response = last["response"]
    assert (response["status"], response["usage"]) == ("failed", None)
    assert response["error"] == {"code": "model_not_ready", "message": "engine process ended (signal 9)"}
    assert response["output"][0]["content"][0]["text"] == "abc"
    assert response["output"][0]["status"] == "incomplete"
    assert not any(event["type"] == "response.output_item.done" for event in events)


async def test_an_output_can_be_sent_back_as_input():
    plain, _, _ = await both(says(f"<think>a</think>b {CALLED}"), HERMES + "{# <think> #}", tools=[TOOL])
    result = {"type": "function_call_output", "call_id": plain["output"][-1]["call_id"], "output": "sunny"}
    body = json.dumps({"model": "chat", "input": [*plain["output"], result]}).encode()
    turn, answer = read_response(body, OpenAIOptions()).chat.messages
    assert (turn["reasoning_content"], turn["content"][0]["text"]) == ("a", "b ")
    assert turn["tool_calls"][0]["id"] == answer["tool_call_id"]


async def test_a_response_repeats_its_tools():
    plain, _, _ = await both(says('{"city": "Rome"}'), tools=[TOOL], tool_choice=NAMED, parallel_tool_calls=False)
    assert plain["tools"] == [{**TOOL, "description": None, "strict": None}]
    assert (plain["tool_choice"], plain["parallel_tool_calls"]) == (NAMED, False)


PIECES = st.one_of(
    st.builds(Delta, text=st.text(max_size=3)),
    st.builds(Delta, reasoning=st.text(max_size=3)),
    st.builds(lambda text: Delta(calls=[CallPiece(0, "", "call_1", "f"), CallPiece(0, text)]), st.text(max_size=3)),
)


@given(st.lists(PIECES), st.sampled_from(["stop", "length", "tool_calls"]))
def test_whatever_comes_is_kept_in_order_in_items_that_open_and_close(deltas, reason):
    items = ResponseItems(None)
    events = [event for delta in [*deltas, Delta(finish_reason=reason)] for event in items.push(delta)]
    output = items.as_json()
    assert built(json.loads(json.dumps(events))) == output
    said = "".join(item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in output)
    assert said == "".join(delta.text + delta.reasoning + "".join(p.arguments for p in delta.calls) for delta in deltas)
    assert output
    assert [item["status"] for item in output[:-1]] == ["completed"] * (len(output) - 1)
    assert output[-1]["status"] == ("incomplete" if reason == "length" else "completed")
