"""Whatever an embedding, rerank or score request holds, it is answered or refused with a named member."""

import random
from typing import Any

import pytest

from tests.fakes.pooling_runner import fake_model
from tests.unit.openai_api.face import client_of

MEMBERS = {
    "/v1/embeddings": ("input", "messages", "encoding_format", "dimensions", "add_special_tokens"),
    "/v1/rerank": ("query", "documents", "top_n", "return_documents"),
    "/v1/score": ("text_1", "text_2"),
}
SHARED = ("truncate_prompt_tokens", "truncation_side", "priority", "request_id", "normalize", "embed_dtype", "user")
SCALARS = (
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    1.5,
    2.0,
    1e300,
    10**30,
    "",
    "a",
    "float",
    "base64",
    "left",
    "a" * 40,
    "\u0000é🌊",
)


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.5 or depth == 3:
        return rng.choice(SCALARS)
    items = [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind < 0.85:
        return items
    return {rng.choice(("text", "role", "content", "type")): item for item in items}


@pytest.mark.parametrize("task", ["embed", "score"])
@pytest.mark.parametrize("path", MEMBERS)
async def test_no_body_is_our_fault(path, task):
    rng = random.Random(path + task)
    good = {"input": ["a", [1]], "query": "a", "documents": ["b", "c"], "text_1": "a", "text_2": ["b"]}
    model = fake_model(task=task)
    statuses = set()
    async with client_of(model) as client:
        for _ in range(300):
            body: dict[str, Any] = {"model": "emb"} | {name: good[name] for name in MEMBERS[path] if name in good}
            for name in rng.sample([*MEMBERS[path], *SHARED, "model"], rng.randint(0, 3)):
                body[name] = value(rng)
            response = await client.post(path, body)
            statuses.add(response.status_code)
            if response.status_code != 200:
                error = response.json()["error"]
                assert response.status_code in (400, 404), (body, error)
                assert error["message"]
                assert error["param"], (body, error)
    await model.close()
    assert 400 in statuses
    assert (200 in statuses) == (task == "embed" or path != "/v1/embeddings")
