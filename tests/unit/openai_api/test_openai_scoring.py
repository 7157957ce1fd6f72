"""/v1/rerank and /v1/score, with models that score pairs and with vectors that are compared."""

from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from openai_api.scoring import best_first, cosines
from tests.fakes.pooling_runner import expected_vector, fake_model, toy_tokenizer
from tests.unit.openai_api.face import client_of
from tests.unit.openai_api.scripted import ScriptedModel, says

QUERY, DOCUMENTS = "tide", ["moon", "a", "the sea"]


@asynccontextmanager
async def serving(task: str, **changes: Any):
    model = fake_model(task=task, max_model_len=64, **changes)
    async with client_of(model, ScriptedModel(says("x"))) as client:
        yield client
    await model.close()


def scores(task: str, firsts: list[str], seconds: list[str]) -> list[float]:
    tokenizer = toy_tokenizer()
    if task == "score":
        rows = tokenizer.encode_pairs(list(zip(firsts, seconds, strict=True)))
        return [float(expected_vector(row.tokens, row.second, 1)[0]) for row in rows]
    a, b = (
        np.stack([expected_vector(row.tokens, row.second) for row in tokenizer.encode(texts)])
        for texts in (firsts, seconds)
    )
    return [float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
@pytest.mark.parametrize("task", ["embed", "score"])
async def test_documents_come_the_best_first(task, path):
    async with serving(task) as client:
        answer = (await client.post(path, {"model": "emb", "query": QUERY, "documents": DOCUMENTS})).json()
    wanted = scores(task, [QUERY] * 3, DOCUMENTS)
    assert [result["index"] for result in answer["results"]] == sorted(range(3), key=lambda i: -wanted[i])
    for result in answer["results"]:
        assert result["relevance_score"] == pytest.approx(wanted[result["index"]], rel=1e-5)
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == "emb"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0


async def test_only_the_best_are_told_and_without_their_text_where_that_is_asked():
    body = {"model": "emb", "query": {"text": QUERY}, "documents": [{"text": text} for text in DOCUMENTS]}
    async with serving("score") as client:
        whole = (await client.post("/v1/rerank", body)).json()["results"]
        answer = (await client.post("/v1/rerank", {**body, "top_n": 2, "return_documents": False})).json()["results"]
    assert answer == [{name: result[name] for name in ("index", "relevance_score")} for result in whole[:2]]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("task", ["embed", "score"])
@pytest.mark.parametrize(
    ("first", "second", "firsts", "seconds"),
    [
        ("a", "b", ["a"], ["b"]),
        ("a", ["b", "cc"], ["a", "a"], ["b", "cc"]),
        (["a"], ["b", "cc"], ["a", "a"], ["b", "cc"]),
        (["a", "dd"], ["b", "cc"], ["a", "dd"], ["b", "cc"]),
    ],
)
async def test_scores_come_in_the_order_of_the_pairs(task, path, first, second, firsts, seconds):
    async with serving(task) as client:
        answer = (await client.post(path, {"model": "emb", "text_1": first, "text_2": second})).json()
    assert [entry["index"] for entry in answer["data"]] == list(range(len(seconds)))
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(scores(task, firsts, seconds), rel=1e-5)
    assert (answer["object"], answer["data"][0]["object"]) == ("list", "score")


async def test_a_pair_that_is_too_long_is_refused_or_cut():
    body = {"model": "emb", "query": "q", "documents": ["a", "b" * 100]}
    async with serving("score") as client:
        status, error = await client.error("/v1/rerank", body)
        cut = await client.post("/v1/rerank", {**body, "truncate_prompt_tokens": -1})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "documents[1]")
    assert cut.json()["usage"]["prompt_tokens"] == 5 + 64


@pytest.mark.parametrize(
    ("path", "members", "code", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "missing_required_parameter", "query"),
        ("/v1/rerank", {"query": "q"}, "missing_required_parameter", "documents"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "invalid_value", "query"),
        ("/v1/rerank", {"query": ["q"], "documents": ["a"]}, "invalid_type", "query"),
        ("/v1/rerank", {"query": "q", "documents": []}, "empty_array", "documents"),
        ("/v1/rerank", {"query": "q", "documents": "a"}, "invalid_type", "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a", {"text": 1}]}, "invalid_type", "documents[1].text"),
        ("/v1/rerank", {"query": "q", "documents": ["a", ""]}, "invalid_value", "documents[1]"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": -1}, "integer_below_min_value", "top_n"),
        (
            "/v1/rerank",
            {"query": "q", "documents": ["a"], "max_tokens_per_doc": 3},
            "unsupported_parameter",
            "max_tokens_per_doc",
        ),
        ("/v1/score", {"text_2": "a"}, "missing_required_parameter", "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "a"}, "invalid_value", "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": [1]}, "invalid_type", "text_2[0]"),
        ("/v1/score", {"model": "chat", "text_1": "a", "text_2": "b"}, "unsupported_endpoint", "model"),
        ("/v1/embeddings", {"input": "a"}, "unsupported_endpoint", "model"),
    ],
)
async def test_what_is_wrong_is_named(path, members, code, param):
    async with serving("score") as client:
        status, error = await client.error(path, {"model": "emb", **members})
    assert (status, error["code"], error["param"]) == (400, code, param)


def test_equal_scores_keep_their_order():
    assert best_first([0.5, 0.9, 0.5, 0.9], 0) == [1, 3, 0, 2]
    assert best_first([0.5, 0.9, 0.5, 0.9], 3) == [1, 3, 0]


def test_a_vector_without_length_is_like_nothing():
    first, seconds = np.array([[1, 0]], np.float32), np.array([[0, 0], [2, 0], [0, 3], [-1, 0]], np.float32)
    assert cosines(first, seconds).tolist() == [0, 1, 0, -1]
