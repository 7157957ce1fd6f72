"""Reasoning: told apart from the answer, counted, and hidden where it is not wanted."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.request import Grammar
from backends.lm.grammar import check_grammar
from openai_api.reasoning import ReasoningSplitter, ReasoningTags, behind_reasoning, reasoning_tags
from tests.unit.openai_api.face import client_of, finish_of, text_of
from tests.unit.openai_api.scripted import CHATML, ScriptedModel, says, tokens_of

TAGS = ReasoningTags("<think>", "</think>")
THINKS = CHATML + "{# </think> #}"
BEGINS = CHATML + "{{ '<think>\n' }}"


def split(text: str, cuts=(), inside=False) -> tuple[str, str]:
    splitter = ReasoningSplitter(TAGS, inside)
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [splitter.push(text[start:end]) for start, end in pairwise(borders)] + [splitter.flush()]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("<think>a</think>b", False, ("a", "b")),
        ("\n<think>\na\n</think>\n\nb", False, ("\na\n", "b")),
        ("a</think>b", True, ("a", "b")),
        ("<think>a", False, ("a", "")),
        ("a </thin", True, ("a </thin", "")),
        ("plain <think>x</think>", False, ("", "plain <think>x</think>")),
        (" plain\n", False, ("", " plain\n")),
        ("<thi", False, ("", "<thi")),
        ("<think></think>", False, ("", "")),
        ("<think>a</think><think>b", False, ("a", "<think>b")),
    ],
)
@given(cuts=st.lists(st.integers(0, 60), max_size=20))
def test_reasoning_is_told_apart_however_it_is_cut(text, inside, expected, cuts):
    assert split(text, cuts, inside) == expected


async def test_reasoning_has_its_member_and_its_count_streamed_and_whole():
    thought, answer = "hm, é", "Yes."
    model = ScriptedModel(says(f"<think>{thought}</think>\n\n{answer}"), chat_template=THINKS)
    async with client_of(model) as client:
        whole = await client.chat()
        chunks = await client.chat_chunks(stream_options={"include_usage": True})
    message = whole["choices"][0]["message"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert message["reasoning_content"] == "".join(delta.get("reasoning_content", "") for delta in deltas) == thought
    assert message["content"] == text_of(chunks) == answer
    assert finish_of(chunks) == ["stop"]
    count = len(tokens_of(f"<think>{thought}</think>"))
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == count
    assert whole["usage"] == chunks[-1]["usage"]


async def test_a_prompt_that_begins_the_reasoning():
    async with client_of(ScriptedModel(says("hm</think>Yes."), chat_template=BEGINS)) as client:
        message = (await client.chat())["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes.")


async def test_hidden_reasoning_leaves_no_text_no_tokens_and_no_log_probabilities():
    model = ScriptedModel(says("<think>hm</think>Yes."), chat_template=THINKS)
    members = {"include_reasoning": False, "logprobs": True, "return_token_ids": True}
    async with client_of(model) as client:
        whole = await client.chat(**members)
        chunks = await client.chat_chunks(**members)
    choice = whole["choices"][0]
    assert "reasoning_content" not in choice["message"]
    assert choice["message"]["content"] == "Yes."
    shown = tokens_of("Yes.")
    assert choice["token_ids"][: len(shown)] == shown
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert whole["usage"]["completion_tokens"] == len(tokens_of("<think>hm</think>Yes.")) + 1
    streamed = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", [])]
    assert streamed == choice["token_ids"]
    assert not any("hm" in str(chunk) for chunk in chunks)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type": "object"}'),
        Grammar("regex", "a/b+"),
        Grammar("lark", 'start: "[" call "]"\ncall: "x"'),
    ],
)
def test_a_grammar_can_stand_behind_the_reasoning(grammar):
    check_grammar(behind_reasoning(grammar, TAGS), "response_format")


async def test_a_constrained_answer_that_begins_inside_may_think_first():
    model = ScriptedModel(says('hm</think>{"a": 1}'), chat_template=BEGINS)
    async with client_of(model) as client:
        answer = await client.chat(response_format={"type": "json_object"})
    grammar = model.requests[0].sampling.grammar
    assert grammar is not None
    assert "</think>" in grammar.text
    assert answer["choices"][0]["message"]["content"] == '{"a": 1}'


def test_tags_are_told_from_the_template():
    assert reasoning_tags("x[THINK]y") == ReasoningTags("[THINK]", "[/THINK]")
    assert reasoning_tags("plain") is None
