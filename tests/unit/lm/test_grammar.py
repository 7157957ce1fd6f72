"""Grammars without a model: what is accepted, what a row may say, and what happens when a matcher gives up."""

import json
import random
import re
from concurrent.futures import Future
from threading import Event

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.request import Grammar
from backends.lm import grammar as grammars
from backends.lm.grammar import MAX_TEXT, check_grammar
from backends.lm.grammar_compiler import GrammarCompiler, guidance_vocabulary
from backends.lm.grammar_rows import GrammarRows
from backends.lm.sampler_mask import apply_mask
from tests.unit.openai_api.scripted import EOS, TOKENIZER

VOCAB = TOKENIZER.vocab_size + 3  # padded, as models are
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def schema(value) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def vocabulary():
    return guidance_vocabulary(TOKENIZER, VOCAB, frozenset({EOS}))


@pytest.fixture
def compiler():
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


@pytest.fixture
def rows(compiler):
    rows = GrammarRows(compiler, VOCAB)
    yield rows
    rows.close()


def allowed(rows: GrammarRows, row: int) -> list[int]:
    masks = rows.masks([row])
    while masks.late:
        masks = rows.masks([row])
    if masks.failed:
        raise masks.failed[0]
    return np.flatnonzero(np.unpackbits(masks.ready[0].view(np.uint8), bitorder="little")[:VOCAB]).tolist()


def random_answer(rows: GrammarRows, grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """What a model that says anything it may would say; None when it does not come to an end."""
    draw = random.Random(seed)
    rows.add(0, grammar, [])
    tokens: list[int] = []
    while len(tokens) < most:
        choices = allowed(rows, 0)
        token = EOS if EOS in choices else draw.choice(choices)
        if token == EOS:
            return b"".join(TOKENIZER.token_bytes(token) for token in tokens).decode()
        tokens.append(token)
        rows.commit(0, [token])
    return None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"type": "strin"}, "strin"),
        ({"$ref": "#/nope"}, "nope"),
        ({"type": "object", "properties": []}, "properties"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "minimum"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible"),
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"x-guidance": {"lenient": True}, "not": {}}, '"not"'),
        ({"$ref": "http://example.com/schema.json"}, "example.com"),
        ({"type": "string", "pattern": "["}, "unclosed character class"),
        ({"type": "string", "pattern": "(?<=x)y"}, "look-around"),
        ({"type": "string", "pattern": "a*" * 2000}, "complex|too many"),
        (7, "object schema"),
        ({"$ref": "#"}, "no text can satisfy"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_by_what_is_wrong_with_it(wrong, named):
    with pytest.raises(ServingError, match=named) as caught:
        check_grammar(schema(wrong), "response_format")
    assert (caught.value.code, caught.value.reason) == (Code.INVALID, "invalid_json_schema")
    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "wrong",
    [
        Grammar("json_schema", "{"),
        Grammar("regex", "a("),
        Grammar("lark", "start: nothing_of_the_sort"),
        Grammar("lark", "%%%"),
        Grammar("json_schema", json.dumps({"enum": ["x" * MAX_TEXT]})),
    ],
)
def test_other_grammars_are_refused_too(wrong):
    with pytest.raises(ServingError) as caught:
        check_grammar(wrong, "structured_outputs")
    assert caught.value.reason == "invalid_json_schema"


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", "[0-9]{3}-[a-f]+x"), r"[0-9]{3}-[a-f]+x"),
        (Grammar("lark", 'start: "yes" | "no"'), r"yes|no"),
        (Grammar("lark", 'root ::= "a" "b"?'), r"ab?"),
    ],
)
def test_texts_match_their_grammar(rows, grammar, pattern):

    check_grammar(grammar, "guided")
    texts = [text for seed in range(5) if (text := random_answer(rows, grammar, seed)) is not None]
    assert texts
    assert all(re.fullmatch(pattern, text) for text in texts)


def test_the_end_is_allowed_only_where_the_text_may_end(rows):
    rows.add(0, schema(OBJECT), [])
    for token in TOKENIZER.encode('{"a": 1'):
        assert EOS not in allowed(rows, 0)
        rows.commit(0, [token])
    allowed(rows, 0)
    rows.commit(0, TOKENIZER.encode("}"))
    assert allowed(rows, 0) == [EOS]


def test_white_space_between_parts_is_bounded(rows):
    rows.add(0, schema(OBJECT), [])
    for _ in range(30):
        spaces = [token for token in allowed(rows, 0) if TOKENIZER.token_bytes(token) == b" "]
        if not spaces:
            break
        rows.commit(0, spaces)
    rows.commit(0, TOKENIZER.encode("{"))
    count = 0
    while any(TOKENIZER.token_bytes(token) == b" " for token in allowed(rows, 0)):
        rows.commit(0, TOKENIZER.encode(" "))
        count += 1
        assert count < 50


def test_a_row_that_comes_back_goes_on_where_it_was(rows):
    start = TOKENIZER.encode('{"a": 12')
    rows.add(0, schema(OBJECT), [])
    for token in start:
        allowed(rows, 0)
        rows.commit(0, [token])
    before = allowed(rows, 0)
    rows.remove(0)
    rows.add(3, schema(OBJECT), start)
    assert allowed(rows, 3) == before


def test_rows_of_one_grammar_do_not_disturb_each_other(rows):
    rows.add(0, schema(OBJECT), [])
    rows.add(1, schema(OBJECT), TOKENIZER.encode('{"a": 1}'))
    assert EOS not in allowed(rows, 0)
    assert allowed(rows, 1) == [EOS]


def test_a_token_outside_the_grammar_fails_its_own_row(rows):
    rows.add(0, schema(OBJECT), TOKENIZER.encode("x"))
    rows.add(1, schema(OBJECT), [])
    with pytest.raises(ServingError, match="grammar"):
        allowed(rows, 0)
    assert allowed(rows, 1)


def test_a_lexer_filled_by_others_is_replaced(rows, monkeypatch):
    """Copies of a compiled grammar share one lexer, whose states add up over requests."""
    from llguidance import LLParserLimits

    limits = LLParserLimits(max_lexer_states=300, verbose_errors=False)
    monkeypatch.setattr(grammars, "parser_limits", lambda: limits)
    grammar = Grammar("regex", r"[a-z]{1,8}x[a-z]{1,8}y[a-z]{1,3}")
    for seed in range(40):
        random_answer(rows, grammar, seed)
        rows.remove(0)


def test_a_late_mask_is_told_and_comes_later(compiler):
    release = Event()

    def slow_vocabulary():
        release.wait(10)
        return vocabulary()

    compiler = GrammarCompiler(slow_vocabulary)
    rows = GrammarRows(compiler, VOCAB)
    rows.add(0, schema(OBJECT), [])
    masks = rows.masks([0, 5])
    assert (masks.ready, masks.late, masks.failed) == ({}, {0}, {})
    release.set()
    assert allowed(rows, 0)
    rows.close()
    compiler.close()


def test_a_grammar_is_compiled_once_for_all(compiler):
    first = compiler.prepare(schema(OBJECT))
    assert compiler.prepare(schema(OBJECT)) is first
    assert isinstance(first, Future)


def test_the_number_of_kept_grammars_is_bounded(compiler):
    first = compiler.prepare(Grammar("regex", "first"))
    for number in range(70):
        compiler.prepare(Grammar("regex", f"x{number}")).result()
    assert compiler.prepare(Grammar("regex", "first")) is not first


def test_a_model_without_a_usable_vocabulary_says_so():
    def none():
        raise ValueError("it has no tokenizer")

    compiler = GrammarCompiler(none)
    error = compiler.prepare(schema(OBJECT)).exception()
    assert isinstance(error, ServingError)
    assert "no tokenizer" in error.message
    compiler.close()


SCALARS = st.sampled_from(
    [
        {"type": "string", "maxLength": 5},
        {"type": "integer", "minimum": -5, "maximum": 300},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["red", 2, None]},
        {"const": {"k": [1]}},
        {"type": "string", "pattern": "^[a-c]{1,4}$"},
        {"type": "string", "format": "date"},
        {"type": ["integer", "null"]},
        {"not": {"type": "string"}},
        {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 9},
    ]
)


def _containers(inner):
    properties = st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    objects = properties.flatmap(
        lambda members: st.lists(st.sampled_from(sorted(members) or ["z"]), unique=True, max_size=3).map(
            lambda required: {
                "type": "object",
                "properties": members,
                "required": required if members else [],
                "additionalProperties": False,
            }
        )
    )
    arrays = st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n}, inner, st.integers(0, 3))
    unions = st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda options: st.sampled_from(["anyOf", "oneOf", "allOf"]).map(lambda name: {name: options})
    )
    return st.one_of(objects, arrays, unions)


@settings(max_examples=60, deadline=None)
@given(st.recursive(SCALARS, _containers, max_leaves=6), st.integers(0, 1000))
def test_whatever_the_schema_the_answer_validates_or_the_schema_is_refused(value, seed):
    grammar = schema(value)
    try:
        check_grammar(grammar, "schema")
    except ServingError as error:
        assert error.reason == "invalid_json_schema"
        return
    compiler = GrammarCompiler(vocabulary)
    rows = GrammarRows(compiler, VOCAB)
    try:
        text = random_answer(rows, grammar, seed)
    finally:
        rows.close()
        compiler.close()
    if text is not None:
        jsonschema.validate(json.loads(text), value)


@given(st.integers(1, 1200), st.integers(0, 2**32), st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]))
def test_a_mask_leaves_what_it_allows_and_nothing_else(size, seed, share):
    draw = np.random.default_rng(seed)
    allowed = draw.random(-(-size // 32) * 32) < share
    values = draw.standard_normal(size).astype(np.float32)
    expected = np.where(allowed[:size], values, -np.inf)
    apply_mask(values, np.packbits(allowed, bitorder="little").view(np.int32))
    assert np.array_equal(values, expected)


def test_a_pattern_that_proves_too_much_work_on_the_way_is_the_request_s_fault(rows):
    letter = next(token for token in range(VOCAB) if TOKENIZER.token_bytes(token) == b"a")

    def say_letters() -> None:
        for _ in range(400):
            assert letter in allowed(rows, 0)
            rows.commit(0, [letter])

    rows.add(0, Grammar("regex", "(([a-z]{1,20}){1,20}){1,20}"), [])
    with pytest.raises(ServingError, match="more work than the bounds allow") as caught:
        say_letters()
    assert (caught.value.code, caught.value.reason) == (Code.INVALID, "invalid_json_schema")
