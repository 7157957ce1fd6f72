"""Structured output: what a request says becomes the engine's grammar, and what cannot be kept is refused before."""

import json

import pytest

from backends.api.request import Grammar
from tests.unit.openai_api.face import CHAT, COMPLETIONS, USER, client_of, finish_of, text_of
from tests.unit.openai_api.scripted import ScriptedModel, says

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def by_schema(schema) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}}


async def grammar_of(endpoint: str = CHAT, **members) -> Grammar | None:
    model = ScriptedModel(says("{}"))
    async with client_of(model) as client:
        prompt = {"messages": USER} if endpoint == CHAT else {"prompt": "x"}
        response = await client.post(endpoint, {**prompt, **members})
        assert response.status_code == 200, response.text
    return model.requests[0].sampling.grammar


@pytest.mark.parametrize(
    "members",
    [
        by_schema(SCHEMA),
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "outlines"},
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
async def test_a_schema_comes_to_the_engine_under_every_name(endpoint, members):
    grammar = await grammar_of(endpoint, **members)
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", SCHEMA)


@pytest.mark.parametrize(
    ("members", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", 'n"o']}, "lark", 'start: "yes" | "n\\"o"'),
        ({"structured_outputs": {"grammar": 'start: "x"'}}, "lark", 'start: "x"'),
        (by_schema({}), "json_schema", "{}"),
        (by_schema(True), "json_schema", "{}"),
    ],
)
async def test_the_other_kinds(members, kind, text):
    assert await grammar_of(**members) == Grammar(kind, text)


@pytest.mark.parametrize("members", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
async def test_text_is_free(members):
    assert await grammar_of(**members) is None


@pytest.mark.parametrize("compact", [{"disable_any_whitespace": True}, {"whitespace_pattern": "[ ]?"}])
async def test_white_space_can_be_chosen(compact):
    grammar = await grammar_of(structured_outputs={"json": SCHEMA, **compact})
    assert grammar is not None
    assert "x-guidance" in json.loads(grammar.text)


BAD = ["", "{", {"type": "strin"}, {"$ref": "#/nope"}, {"type": "object", "properties": []}, {"enum": []}, 7, []]


@pytest.mark.parametrize("schema", [*BAD, False, {"not": {"type": "string"}}, {"type": "string", "pattern": "["}])
async def test_a_schema_that_cannot_be_kept_is_a_400_and_never_reaches_the_engine(schema):
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        status, error = await client.error(CHAT, {"messages": USER, **by_schema(schema)})
        assert (status, error["code"]) == (400, "invalid_json_schema")
        assert error["param"].startswith("response_format")
        assert not model.requests
        await client.chat()


async def test_the_schema_false_is_refused_in_words():
    async with client_of(ScriptedModel(says("x"))) as client:
        _, error = await client.error(CHAT, {"messages": USER, **by_schema(False)})
    assert "no value satisfies" in error["message"]


async def test_half_a_surrogate_pair_in_a_schema_given_as_text_is_a_400():
    async with client_of(ScriptedModel(says("x"))) as client:
        for text in ('{"enum": ["\\ud800"]}', '{"title": "\\ud83d", "type": "string"}'):
            status, error = await client.error(CHAT, {"messages": USER, "guided_json": text})
            assert (status, error["code"]) == (400, "invalid_json_schema")


async def test_an_explosive_schema_is_a_400():
    deep: dict = {"type": "string"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    async with client_of(ScriptedModel(says("x"))) as client:
        for schema in (deep, {"enum": ["x" * 70_000]}, {"type": "string", "pattern": "(" * 400 + "a" + ")" * 400}):
            status, error = await client.error(CHAT, {"messages": USER, **by_schema(schema)})
            assert (status, error["code"]) == (400, "invalid_json_schema")
            assert len(error["message"]) < 600


async def test_every_choice_of_n_has_the_grammar_and_the_same_form_streamed():
    model = ScriptedModel(says('{"a": 1}'))
    async with client_of(model) as client:
        chunks = await client.chat_chunks(n=2, **by_schema(SCHEMA))
    assert text_of(chunks) == text_of(chunks, 1) == '{"a": 1}'
    assert finish_of(chunks) == finish_of(chunks, 1) == ["stop"]
    assert len({request.sampling.grammar for request in model.requests}) == 1
