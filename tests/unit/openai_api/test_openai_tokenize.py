"""The tokenizer's endpoints, in the shapes that vLLM's clients and lm-eval expect."""

import pytest

from tests.unit.openai_api.face import USER, client_of
from tests.unit.openai_api.scripted import TOKENIZER, ScriptedModel, says


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_text_goes_to_tokens_and_back(prefix):
    async with client_of(ScriptedModel(says("x"))) as client:
        found = (await client.post(f"{prefix}/tokenize", {"prompt": "é <|im_end|>", "return_token_strs": True})).json()
        back = (await client.post(f"{prefix}/detokenize", {"tokens": found["tokens"]})).json()
    assert found["tokens"] == TOKENIZER.encode("é <|im_end|>")
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == 4096
    assert back == {"prompt": "é <|im_end|>"}


async def test_a_chat_is_the_prompt_that_a_completion_gets():
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        answer = await client.chat()
        found = (await client.post("/tokenize", {"messages": USER})).json()
    assert found["tokens"] == model.requests[0].prompt
    assert found["count"] == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
    ],
)
async def test_what_is_wrong_is_named(path, body, param):
    async with client_of(ScriptedModel(says("x"))) as client:
        status, error = await client.error(path, body)
    assert (status, error["param"]) == (400, param)


async def test_an_unknown_model_is_not_found():
    async with client_of(ScriptedModel(says("x"))) as client:
        status, error = await client.error("/tokenize", {"prompt": "a", "model": "nope"})
    assert (status, error["code"]) == (404, "model_not_found")


async def test_the_info_has_what_lm_eval_looks_for():
    async with client_of(ScriptedModel(says("x"))) as client:
        info = (await client.http.get("/tokenizer_info")).json()
        assert (await client.http.post("/tokenizer_info")).status_code == 405
    assert info["eos_token"] == "<|im_end|>"
    assert info["vocab_size"] == TOKENIZER.vocab_size


async def test_the_info_is_of_the_model_that_is_named():
    async with client_of(ScriptedModel(says("x")), ScriptedModel(says("y"), name="other", max_model_len=99)) as client:
        info = [
            await client.http.get("/tokenizer_info", params=query)
            for query in ({"model": "other"}, {"model": "no"}, {})
        ]
    assert [answer.status_code for answer in info] == [200, 404, 400]
    assert info[0].json()["model_max_length"] == 99
    assert [answer.json()["error"]["param"] for answer in info[1:]] == ["model", "model"]
