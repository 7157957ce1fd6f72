"""/v1/embeddings over a model whose vectors say which tokens they were made of."""

import asyncio
import base64
import threading
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.caller import CALLER, Caller
from openai_api.embeddings import cut
from scheduler.engine_options import EngineOptions
from tests.fakes.pooling_runner import MAX_LEN, VOCAB, FakePoolingRunner, expected_vector, fake_model, toy_tokenizer
from tests.unit.openai_api.face import USER, Client, client_of
from tests.unit.openai_api.scripted import ScriptedModel, says

PATH = "/v1/embeddings"


@asynccontextmanager
async def serving(*others: Any, **changes: Any):
    model = fake_model(**changes)
    async with client_of(model, *others) as client:
        yield client
    await model.close()


async def embed(client: Client, **members: Any) -> dict[str, Any]:
    response = await client.post(PATH, {"model": "emb", **members})
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer: dict[str, Any]) -> list[list[float]]:
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    assert {entry["object"] for entry in answer["data"]} == {"embedding"}
    return [entry["embedding"] for entry in answer["data"]]


def wanted(model_input: str | list[int], special: bool = True) -> list[float]:
    tokens = model_input if isinstance(model_input, list) else fake_tokens(model_input, special)
    return expected_vector(tokens, len(tokens)).tolist()


def fake_tokens(text: str, special: bool = True) -> list[int]:
    return list(toy_tokenizer().encode([text], add_special_tokens=special)[0].tokens)


@pytest.mark.parametrize(
    ("given_input", "items"),
    [
        ("tide", ["tide"]),
        (["b", "a", "tide"], ["b", "a", "tide"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
        (["a", [5, 6], "b"], ["a", [5, 6], "b"]),
    ],
)
async def test_every_form_of_input_has_its_vectors_in_order(given_input, items):
    async with serving() as client:
        answer = await embed(client, input=given_input)
    assert vectors(answer) == [wanted(item) for item in items]
    count = sum(len(item) if isinstance(item, list) else len(fake_tokens(item)) for item in items)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (answer["object"], answer["model"]) == ("list", "emb")
    assert answer["id"].startswith("embd-")


async def test_base64_is_the_same_numbers_as_little_endian_float32():
    async with serving() as client:
        plain = vectors(await embed(client, input=["a", "tide"], encoding_format="float"))
        coded = vectors(await embed(client, input=["a", "tide"], encoding_format="base64"))
    assert [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in coded] == plain


async def test_null_members_are_absent_ones_and_unknown_ones_are_ignored():
    names = ("encoding_format", "dimensions", "truncate_prompt_tokens", "priority", "add_special_tokens")
    async with serving() as client:
        answer = await embed(client, input="a", **dict.fromkeys(names), what="ever", user="me")
    assert vectors(answer) == [wanted("a")]


async def test_special_tokens_may_be_left_out():
    async with serving() as client:
        assert vectors(await embed(client, input="ab", add_special_tokens=False)) == [wanted("ab", False)]


async def test_long_texts_are_cut_where_the_request_says_so():
    text = "".join(chr(97 + i % 26) for i in range(100))
    async with serving() as client:
        for keep, side, kept in ((-1, None, text[: MAX_LEN - 2]), (5, None, text[:3]), (5, "left", text[-3:])):
            answer = await embed(client, input=text, truncate_prompt_tokens=keep, truncation_side=side)
            assert vectors(answer) == [wanted(kept)]
        answer = await embed(client, input=[[1, 2, 3, 4], [5]], truncate_prompt_tokens=2)
        assert vectors(answer) == [wanted([1, 2]), wanted([5])]


async def test_a_prompt_of_the_model_stands_before_texts_and_not_before_tokens():
    async with serving(prompt="q: ") as client:
        answer = await embed(client, input=["a", [1]])
    assert vectors(answer) == [wanted("q: a"), wanted([1])]


async def test_a_chat_is_one_text_made_by_the_template():
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    async with serving(template=template) as client:
        answer = await embed(client, messages=USER)
        assert vectors(answer) == [wanted("<user>hi", special=False)]
        status, error = await client.error(PATH, {"model": "emb", "messages": USER, "input": "a"})
        assert (status, error["param"]) == (400, "input")
        status, error = await client.error(PATH, {"model": "emb", "messages": [{"role": "nobody", "content": "x"}]})
        assert (status, error["param"]) == (400, "messages[0].role")


async def test_vectors_are_cut_and_made_of_length_one_again():
    async with serving(matryoshka=(2, 4), normalize=True) as client:
        (whole,) = vectors(await embed(client, input="tide"))
        (short,) = vectors(await embed(client, input="tide", dimensions=2))
        status, error = await client.error(PATH, {"model": "emb", "input": "a", "dimensions": 3})
    np.testing.assert_allclose(short, np.array(whole[:2]) / np.linalg.norm(whole[:2]), rtol=1e-6)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "dimensions")
    assert "one of 2, 4" in error["message"]


@pytest.mark.parametrize("matryoshka", [None, (2,)])
async def test_the_length_that_vectors_have_anyway_may_be_asked_for(matryoshka):
    async with serving(matryoshka=matryoshka) as client:
        plain = await embed(client, input="tide")
        asked = await embed(client, input="tide", dimensions=len(vectors(plain)[0]))
    assert vectors(asked) == vectors(plain)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4), st.integers(1, 4))
def test_a_cut_vector_has_length_one_or_zero(values, dimensions):
    (short,) = cut(np.array([values], np.float32), dimensions, normalize=True)
    assert len(short) == dimensions
    length = np.linalg.norm(short.astype(np.float64))
    assert abs(length - 1) < 1e-5 or not np.linalg.norm(np.array(values[:dimensions], np.float32)) > 1e-12


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": [""]}, "invalid_value", "input[0]"),
        ({"input": ["a", []]}, "invalid_value", "input[1]"),
        ({"input": [[]]}, "invalid_value", "input[0]"),
        ({"input": [1.5]}, "invalid_type", "input[0]"),
        ({"input": 7}, "invalid_type", "input"),
        ({"input": [[1, "a"]]}, "invalid_type", "input[0][1]"),
        ({"input": [-1]}, "integer_below_min_value", "input[0]"),
        ({"input": ["a", [VOCAB]]}, "invalid_value", "input[1]"),
        ({"input": ["a"] * 2049}, "array_above_max_length", "input"),
        ({"input": "a" * 31}, "context_length_exceeded", "input"),
        ({"input": ["a", "a" * 31]}, "context_length_exceeded", "input[1]"),
        ({"input": [[1] * 33]}, "context_length_exceeded", "input[0]"),
        ({"input": "a", "add_special_tokens": "no"}, "invalid_type", "add_special_tokens"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "integer_below_min_value", "dimensions"),
        ({"input": "a", "dimensions": 2}, "unsupported_parameter", "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "integer_below_min_value", "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 33}, "context_length_exceeded", "truncate_prompt_tokens"),
        ({"input": "a", "normalize": False}, "unsupported_parameter", "normalize"),
        ({"input": "a", "embed_dtype": "float16"}, "unsupported_value", "embed_dtype"),
        ({"messages": USER}, "unsupported_parameter", "messages"),
        ({"model": "emb2", "input": "a"}, "model_not_found", "model"),
        ({"model": "chat", "input": "a"}, "unsupported_endpoint", "model"),
    ],
)
async def test_what_is_wrong_is_named(members, code, param):
    async with serving(ScriptedModel(says("x"))) as client:
        status, error = await client.error(PATH, {"model": "emb", **members})
    assert (status, error["code"], error["param"]) == (404 if code == "model_not_found" else 400, code, param)


async def test_a_text_that_is_too_long_is_told_how_long_it_is():
    async with serving() as client:
        _, error = await client.error(PATH, {"model": "emb", "input": "a" * 31})
    assert error["message"].startswith("This model's maximum context length is 32 tokens, but 'input' has 33 tokens.")


async def test_foreign_token_ids_are_met_with_a_hint():
    async with serving() as client:
        _, error = await client.error(PATH, {"model": "emb", "input": [90_000]})
    assert "check_embedding_ctx_length" in error["message"]


async def test_one_request_has_a_bounded_number_of_tokens():
    async with serving(max_model_len=1000) as client:
        status, error = await client.error(PATH, {"model": "emb", "input": [[1] * 1000] * 301})
    assert (status, error["code"], error["param"]) == (400, "max_tokens_per_request", "input")


async def test_a_model_of_each_kind_is_found_without_being_named_and_listed():
    async with serving(ScriptedModel(says("x"))) as client:
        bodies = {"/v1/embeddings": {"input": "a"}, "/v1/chat/completions": {"messages": USER}}
        for path, body in bodies.items():
            assert (await client.http.post(path, json=body)).status_code == 200
        cards = (await client.http.get("/v1/models")).json()["data"]
        found = {card["id"]: (card["max_model_len"], card["task"]) for card in cards}
        assert found == {"chat": (4096, "generate"), "emb": (MAX_LEN, "embed")}
        assert (await client.http.get("/v1/models/emb")).json() in cards
        status, error = await client.error("/v1/chat/completions", {"model": "emb", "messages": USER})
        assert (status, error["code"], error["param"]) == (400, "unsupported_endpoint", "model")


async def test_a_full_queue_is_503_with_a_time_to_come_back():
    held, release = threading.Event(), threading.Event()

    def hold(rows: Any) -> None:
        held.set()
        assert release.wait(20)

    options = EngineOptions(max_num_seqs=1, max_num_queued_reqs=0)
    async with serving(runner=FakePoolingRunner(hold), options=options) as client:
        first = asyncio.create_task(embed(client, input="a"))
        await asyncio.to_thread(held.wait, 20)
        response = await client.post(PATH, {"model": "emb", "input": "b"})
        release.set()
        assert vectors(await first) == [wanted("a")]
        assert vectors(await embed(client, input="b")) == [wanted("b")]
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    assert int(response.headers["retry-after"]) >= 1


async def test_a_failing_model_is_500_and_serves_the_next():
    fails = [True]

    def run(rows: Any) -> None:
        if fails.pop():
            raise ValueError("secret")

    async with serving(runner=FakePoolingRunner(run)) as client:
        status, error = await client.error(PATH, {"model": "emb", "input": "a"})
        fails.append(False)
        assert vectors(await embed(client, input="a")) == [wanted("a")]
    assert (status, error["code"]) == (500, "internal_error")
    assert "secret" not in error["message"]


async def test_numbers_that_json_cannot_hold_are_an_error():
    class Overflowing(FakePoolingRunner):
        def run(self, rows: Any) -> np.ndarray:
            return super().run(rows) * np.float32("inf")

    async with serving(runner=Overflowing()) as client:
        status, error = await client.error(PATH, {"model": "emb", "input": "a"})
    assert (status, error["code"], "not finite" in error["message"]) == (500, "internal_error", True)


async def test_tokens_are_charged_to_the_caller():
    spent: list[int] = []
    token = CALLER.set(Caller("me", spend=spent.append))
    try:
        async with serving() as client:
            await embed(client, input=["ab", "c"])
            await client.error(PATH, {"model": "emb", "input": "a" * 31})
    finally:
        CALLER.reset(token)
    assert spent == [len(fake_tokens("ab")) + len(fake_tokens("c"))]


async def test_an_answer_of_any_size_has_the_same_form():
    texts, dimension = [f"t{i}" for i in range(400)], 64
    async with serving(dimension=dimension) as client:
        large = vectors(await embed(client, input=texts))
        (small,) = vectors(await embed(client, input=texts[7]))
    tokens = fake_tokens(texts[7])
    assert large[7] == small == expected_vector(tokens, len(tokens), dimension).tolist()
    assert len(large) == len(texts)
