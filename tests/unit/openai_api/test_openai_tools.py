"""Tools: what is refused, how calls are forced, and how they come back streamed and whole."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.lm.grammar import bytes_vocabulary, check_grammar, compile_grammar
from openai_api.call_scanner import RequiredCalls
from openai_api.calls import HERMES, LLAMA3_JSON, MISTRAL, PYTHONIC, AutoCalls, CallPiece, Parsed, call_format
from openai_api.fields import Fields
from openai_api.tools import read_tools
from tests.unit.openai_api.face import CHAT, USER, client_of, finish_of, text_of
from tests.unit.openai_api.scripted import CHATML, EOS, ScriptedModel, says, tokens, tokens_of

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HERMES_TEMPLATE = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + CHATML


def tool(name: str, **function) -> dict:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": CITY, **function}}


TOOLS = [tool("weather"), tool("news")]
NAMED = {"type": "function", "function": {"name": "news"}}
TWO = '[{"name": "weather", "parameters": {"city": "P}a\\"ris"}}, {"name": "news", "parameters": {"city": "{["}}]'


def calls_of(chunks) -> list[tuple[str, str, str]]:
    """(id, name, arguments) as a client adds them up; the laws of the wire are checked on the way."""
    calls: list[list[str]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            pieces = choice["delta"].get("tool_calls", [])
            assert len(pieces) <= 1
            for piece in pieces:
                if "id" in piece:
                    assert piece["index"] == len(calls)
                    assert piece["type"] == "function"
                    assert piece["function"]["arguments"] == ""
                    calls.append([piece["id"], piece["function"]["name"], ""])
                else:
                    assert piece["index"] == len(calls) - 1
                    assert set(piece["function"]) == {"arguments"}
                calls[-1][2] += piece["function"]["arguments"]
    assert all(len(call[0]) > 16 for call in calls)
    assert len({call[0] for call in calls}) == len(calls)
    return [(call[0], call[1], call[2]) for call in calls]


def plain_calls(answer) -> list[tuple[str, str]]:
    found = answer["choices"][0]["message"].get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in found]


async def both(script, template=CHATML, **members):
    """(plain answer, chunks) of one request."""
    async with client_of(ScriptedModel(script, chat_template=template)) as client:
        return await client.chat(**members), await client.chat_chunks(**members)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sports"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool("weather"), tool("a b")]}, "tools[1].function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        ({"tools": [tool("f", parameters=3)]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", parameters={"type": "string"})]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", strict=1)]}, "tools[0].function.strict"),
        (
            {"tools": [tool("g"), tool("f", parameters={"not": {}})], "tool_choice": "required"},
            "tools[1].function.parameters",
        ),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
        ),
    ],
)
async def test_tools_and_choices_that_make_no_sense_are_named(members, param):
    async with client_of(ScriptedModel(says("x"))) as client:
        status, error = await client.error(CHAT, {"messages": USER, **members})
        assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize("per_event", [1, 3, 200])
async def test_required_calls_are_the_same_streamed_and_whole(per_event):
    script = says(TWO)
    async with client_of(ScriptedModel(script, tokens_per_event=per_event)) as client:
        answer = await client.chat(tools=TOOLS, tool_choice="required")
        chunks = await client.chat_chunks(tools=TOOLS, tool_choice="required")
    expected = [("weather", '{"city": "P}a\\"ris"}'), ("news", '{"city": "{["}')]
    assert plain_calls(answer) == [call[1:] for call in calls_of(chunks)] == expected
    assert answer["choices"][0]["message"]["content"] is None
    assert text_of(chunks) == ""
    assert [answer["choices"][0]["finish_reason"]] == finish_of(chunks) == ["tool_calls"]


async def test_a_named_tool_ends_with_stop_and_no_content():
    answer, chunks = await both(says('{"city": "Rome"}'), tools=TOOLS, tool_choice=NAMED)
    assert plain_calls(answer) == [call[1:] for call in calls_of(chunks)] == [("news", '{"city": "Rome"}')]
    assert answer["choices"][0]["message"]["content"] is None
    assert [answer["choices"][0]["finish_reason"]] == finish_of(chunks) == ["stop"]


@pytest.mark.parametrize("max_tokens", [1, 12, 45, len(TWO) - 1])
async def test_calls_that_were_cut_end_with_length(max_tokens):
    answer, chunks = await both(says(TWO), tools=TOOLS, tool_choice="required", max_tokens=max_tokens)
    assert [answer["choices"][0]["finish_reason"]] == finish_of(chunks) == ["length"]
    assert plain_calls(answer) == [call[1:] for call in calls_of(chunks)]
    if max_tokens == 1:
        assert "tool_calls" not in answer["choices"][0]["message"]
        assert answer["choices"][0]["message"]["content"] == ""


async def test_the_grammar_of_forced_calls_compiles_and_allows_what_was_asked_for():
    for members in (
        {"tool_choice": "required"},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": NAMED},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}},
    ):
        use = read_tools(Fields({"tools": [tool("weather"), tool("news", strict=True)], **members}))
        grammar = use.grammar()
        assert grammar is not None
        check_grammar(grammar, "tools")
        assert ("weather" in grammar.text) == (members["tool_choice"] == "required")


async def test_definitions_of_each_tool_stay_its_own():
    for kind in ("string", "integer"):
        parameters = {
            "type": "object",
            "properties": {"v": {"$ref": "#/$defs/V"}},
            "required": ["v"],
            "$defs": {"V": {"type": kind}},
        }
        use = read_tools(Fields({"tools": [tool("f", parameters=parameters)], "tool_choice": "required"}))
        grammar = use.grammar()
        assert grammar is not None
        check_grammar(grammar, "tools")


@pytest.mark.parametrize(
    ("parameters", "is_closed"),
    [(None, True), ({"type": "object", "properties": {}}, True), ({"type": "object"}, False)],
)
def test_a_tool_without_arguments_gets_none(parameters, is_closed):
    use = read_tools(Fields({"tools": [tool("news", parameters=parameters)], "tool_choice": NAMED}))
    grammar = use.grammar()
    assert grammar is not None
    assert (json.loads(grammar.text).get("additionalProperties") is False) == is_closed


async def test_none_calls_nothing_and_shows_the_model_no_tools():
    model = ScriptedModel(
        says('<tool_call>{"name": "news", "arguments": {}}</tool_call>'), chat_template=HERMES_TEMPLATE
    )
    async with client_of(model) as client:
        answer = await client.chat(tools=TOOLS, tool_choice="none")
        await client.chat()
    assert answer["choices"][0]["message"]["content"].startswith("<tool_call>")
    assert model.requests[0].prompt == model.requests[1].prompt


async def test_forced_calls_tell_a_template_without_tools_what_there_is():
    model = ScriptedModel(says(TWO))
    async with client_of(model) as client:
        await client.chat(tools=TOOLS, tool_choice="required")
    assert b"weather" in b"".join(model.tokenizer.token_bytes(token) for token in model.requests[0].prompt)


HERMES_SAYS = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "news", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


async def test_calls_of_the_models_own_accord():
    answer, chunks = await both(says(HERMES_SAYS), HERMES_TEMPLATE, tools=TOOLS)
    expected = [("weather", '{"city": "Rome"}'), ("news", '{"city": "Oslo"}')]
    assert plain_calls(answer) == [call[1:] for call in calls_of(chunks)] == expected
    assert answer["choices"][0]["message"]["content"] == text_of(chunks) == "Let me see.\n"
    assert [answer["choices"][0]["finish_reason"]] == finish_of(chunks) == ["tool_calls"]


async def test_parallel_calls_can_be_refused():
    answer, chunks = await both(says(HERMES_SAYS), HERMES_TEMPLATE, tools=TOOLS, parallel_tool_calls=False)
    assert plain_calls(answer) == [call[1:] for call in calls_of(chunks)] == [("weather", '{"city": "Rome"}')]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{broken}</tool_call> and more",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments"',
        "  a < b <tool",
        "no call at all\n",
        " \n",
    ],
)
async def test_what_is_no_call_stays_text(text):
    answer, chunks = await both(says(text), HERMES_TEMPLATE, tools=TOOLS)
    assert answer["choices"][0]["message"]["content"] == text_of(chunks) == text
    assert [answer["choices"][0]["finish_reason"]] == finish_of(chunks) == ["stop"]


async def test_auto_without_a_format_is_text():
    answer, _ = await both(says("I would call weather"), tools=TOOLS)
    assert answer["choices"][0]["message"]["content"] == "I would call weather"


async def test_usage_and_log_probabilities_count_calls_too():
    async with client_of(ScriptedModel(tokens(*tokens_of(TWO), EOS))) as client:
        members = {"tools": TOOLS, "tool_choice": "required", "logprobs": True}
        answer = await client.chat(**members)
        chunks = await client.chat_chunks(**members, stream_options={"include_usage": True})
    assert answer["usage"] == chunks[-1]["usage"]
    assert answer["usage"]["completion_tokens"] == len(tokens_of(TWO)) + 1
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == answer["choices"][0]["logprobs"]["content"]


def read(reader, text: str, cuts=()) -> tuple[str, dict[int, list[str]]]:
    """(text, calls by number as [name, arguments])"""
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts: list[Parsed] = [reader.push(text[start:end]) for start, end in pairwise(borders)]
    calls: dict[int, list[str]] = {}
    said = ""
    for part in [*parts, reader.flush()]:
        said += part.text
        for piece in part.calls:
            _add(calls, piece)
    return said, calls


def _add(calls: dict[int, list[str]], piece: CallPiece) -> None:
    if piece.id:
        calls[piece.index] = [piece.name, ""]
    calls[piece.index][1] += piece.arguments


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from(["weather", "news"]), ARGUMENTS), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 500), max_size=30)


@given(CALLS, CUTS)
def test_required_calls_are_read_however_they_are_cut(calls, cuts):
    objects = [f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}' for name, arguments in calls]
    reader = RequiredCalls()
    said, found = read(reader, f"[{', '.join(objects)}]", cuts)
    assert said == ""
    assert [(name, json.loads(text)) for name, text in found.values()] == calls
    assert reader.is_complete


def _as(format_name: str, calls) -> str:
    objects = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    match format_name:
        case "hermes":
            return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
        case "llama3_json":
            return "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)
        case "mistral":
            return f"[TOOL_CALLS][{', '.join(objects)}]"
        case _:
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


@pytest.mark.parametrize(
    ("style", "form"),
    [("hermes", HERMES), ("llama3_json", LLAMA3_JSON), ("mistral", MISTRAL), ("mistral_args", MISTRAL)],
)
@given(calls=CALLS, cuts=CUTS)
def test_each_family_is_read_however_it_is_cut(style, form, calls, cuts):
    if "</tool_call>" in json.dumps(calls) or "[TOOL_CALLS]" in json.dumps(calls):
        return
    said, found = read(AutoCalls(form, frozenset({"weather", "news"}), True), _as(style, calls), cuts)
    assert said == ""
    assert [(name, json.loads(text)) for name, text in found.values()] == calls


@given(CUTS)
def test_pythonic_calls(cuts):
    text = "[weather(city='Rome', days=3), news(tags=['a', {'b': None}])]"
    said, found = read(AutoCalls(PYTHONIC, frozenset({"weather", "news"}), True), text, cuts)
    assert said == ""
    assert found == {0: ["weather", '{"city": "Rome", "days": 3}'], 1: ["news", '{"tags": ["a", {"b": null}]}']}


@pytest.mark.parametrize("text", ["[weather(1)]", "[1, 2]", "[weather(city=open('x'))]", "[" * 300, "[weather("])
def test_what_is_no_pythonic_call_is_text(text):
    assert read(AutoCalls(PYTHONIC, frozenset({"weather"}), True), text) == (text, {})


@given(st.text(st.sampled_from("<tool_call>{} \n")), CUTS)
def test_text_without_calls_is_never_lost(text, cuts):
    said, found = read(AutoCalls(HERMES, frozenset({"weather"}), True), text, cuts)
    assert (said, found) == (text, {})


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call></tool_call>", "hermes"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ('Respond in the format {"name": function name, "parameters": x} <|python_tag|>', "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("plain", None),
    ],
)
def test_the_format_is_told_from_the_template(template, name):
    found = call_format(template)
    assert (found and found.name) == name


async def test_strict_tools_are_held_to_their_schemas_when_the_model_decides_too():
    model = ScriptedModel(says("hi"), chat_template=HERMES_TEMPLATE)
    async with client_of(model) as client:
        await client.chat(tools=[tool("weather", strict=True), tool("news")])
        await client.chat(tools=TOOLS)
    strict, free = (request.sampling.grammar for request in model.requests)
    assert free is None
    assert strict is not None
    check_grammar(strict, "tools")
    matcher = compile_grammar(strict, bytes_vocabulary())
    for text, fits in [
        ("plain < text", True),
        ('Ok.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "news", "arguments": {"any": 1}}\n</tool_call>\nbye', True),
        ('<tool_call>\n{"name": "weather", "arguments": {"town"', False),
        ('<tool_call>\n{"name": "sports"', False),
    ]:
        matcher.reset()
        assert (matcher.try_consume_tokens(list(text.encode())) == len(text)) == fits, text
        assert not fits or matcher.is_accepting()
