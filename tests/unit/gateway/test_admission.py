"""What each key gets to do over HTTP, on every face."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateway.settings import Settings
from tests.fakes.front import USER, FrontApp, hello

INFER = {"inputs": [{"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
KEYS = """
[[keys]]
name = "all"
key = "sk-all"
[[keys]]
name = "second"
key = "sk-second"
[[keys]]
name = "some"
key = "sk-some"
models = ["chat", "ident"]
priority = 5
[[keys]]
name = "kserve"
key = "sk-kserve"
faces = ["kserve"]
[[keys]]
name = "admin"
key = "sk-admin"
faces = ["admin"]
[[keys]]
name = "limited"
key = "sk-limited"
max_concurrent_requests = 1
requests_per_minute = 3
[[keys]]
name = "thrifty"
key = "sk-thrifty"
tokens_per_minute = 5
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return Settings(api_key_file=str(path))


@pytest.fixture
def front(settings: Settings) -> FrontApp:
    return FrontApp(settings)


async def chat(front: FrontApp, key: str, model: str = "chat", **members: object) -> httpx.Response:
    async with front.client(key) as client:
        return await client.post("/v1/chat/completions", json={"model": model, "messages": USER, **members})


async def post(front: FrontApp, key: str, path: str, body: object = None) -> httpx.Response:
    async with front.client(key) as client:
        return await client.post(path, json=body if body is not None else {})


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("key", ["", "sk-wrong", "sk-al"])
async def test_without_a_right_key_each_face_answers_401_in_its_own_shape(front: FrontApp, key: str) -> None:
    openai, kserve = await chat(front, key), await post(front, key, "/v2/models/ident/infer", INFER)
    assert code_of(openai) == (401, "invalid_api_key")
    assert set(openai.json()["error"]) == {"message", "type", "param", "code"}
    assert kserve.status_code == 401
    assert isinstance(kserve.json()["error"], str)
    for response in (openai, kserve):
        assert response.headers["www-authenticate"] == "Bearer"
        assert not key or key not in response.text
    assert not front.chat.requests


async def test_health_the_page_and_preflights_need_no_key(front: FrontApp) -> None:
    async with front.client() as client:
        for path in ("/health", "/ping", "/v2/health/live", "/v2/health/ready", "/", "/metrics"):
            assert (await client.get(path)).status_code == 200, path
        for path in ("/version", "/docs", "/openapi.json", "/v1/models", "/v2", "/nowhere", "/v2/models/ident/ready"):
            assert (await client.get(path)).status_code == 401, path
        assert (await client.options("/v1/chat/completions")).status_code == 405


async def test_metrics_can_be_guarded(settings: Settings) -> None:
    front = FrontApp(replace(settings, metrics_require_key=True))
    async with front.client() as client:
        assert (await client.get("/metrics")).status_code == 401
    async with front.client("sk-kserve") as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_an_ordinary_key_uses_both_faces_and_may_not_change_the_server(front: FrontApp) -> None:
    assert (await chat(front, "sk-all")).status_code == 200
    assert (await post(front, "sk-all", "/v2/models/ident/infer", INFER)).status_code == 200
    for path in ("/v2/repository/models/ident/unload", "/v2/systemsharedmemory/unregister", "/v2/logging"):
        refused = await post(front, "sk-all", path)
        assert refused.status_code == 403, path
        assert "admin" in refused.json()["error"]


async def test_an_admin_key_loads_and_unloads_and_a_key_for_one_face_stays_there(front: FrontApp) -> None:
    assert (await post(front, "sk-admin", "/v2/repository/models/ident/load")).status_code == 200
    assert (await post(front, "sk-admin", "/v2/repository/index")).status_code == 200
    assert code_of(await chat(front, "sk-admin")) == (403, "permission_denied")
    assert code_of(await chat(front, "sk-kserve")) == (403, "permission_denied")
    assert (await post(front, "sk-admin", "/v2/models/ident/infer", INFER)).status_code == 403


async def test_a_key_for_some_models_sees_and_uses_those_alone(front: FrontApp) -> None:
    assert (await chat(front, "sk-some")).status_code == 200
    assert (await chat(front, "sk-some", "chat:1")).status_code == 200
    for model in ("other", "other:1"):
        refused = await chat(front, "sk-some", model)
        assert code_of(refused) == (403, "model_not_allowed")
        assert refused.json()["error"]["param"] == "model"
    assert code_of(await chat(front, "sk-some", "absent")) == (404, "model_not_found")
    assert (await post(front, "sk-some", "/v2/models/ident/infer", INFER)).status_code == 200
    for path in ("/v2/models/ident_raw/infer", "/v2/models/ident_raw/generate", "/v2/repository/index"):
        assert (await post(front, "sk-some", path, INFER)).status_code == 403, path
    async with front.client("sk-some") as client:
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["chat"]
        assert (await client.get("/v1/models/other")).status_code == 403
        assert (await client.get("/v2/models/stats")).status_code == 403
        assert (await client.get("/v2/models/ident_raw/config")).status_code == 403
    assert not front.other.requests


@pytest.mark.parametrize("length", [10, 100_000])
async def test_rights_go_along_to_the_threads_that_large_bodies_are_read_on(front: FrontApp, length: int) -> None:
    text = "a" * length
    allowed = await post(front, "sk-some", "/tokenize", {"model": "chat", "prompt": text})
    assert allowed.status_code == 200
    refused = await post(front, "sk-some", "/tokenize", {"model": "other", "prompt": text})
    assert code_of(refused) == (403, "model_not_allowed")


async def test_a_key_s_slots_are_given_back_however_requests_end(settings: Settings) -> None:
    gated = hello("chat")
    gated.gate = asyncio.Semaphore(0)
    front = FrontApp(settings, chat=gated)
    first = asyncio.create_task(chat(front, "sk-limited"))
    await gated.until_running(1)
    refused = await chat(front, "sk-limited")
    assert code_of(refused) == (429, "rate_limit_exceeded")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 2
    kserve = await post(front, "sk-limited", "/v2/models/ident/infer", INFER)
    assert kserve.status_code == 429
    assert "1 requests at a time" in kserve.json()["error"]
    assert (await chat(front, "sk-all", "other")).status_code == 200
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (await chat(front, "sk-limited", "absent")).status_code == 404
    assert (await post(front, "sk-limited", "/v2/models/ident/infer", INFER)).status_code == 200
    assert code_of(await chat(front, "sk-limited", "other")) == (429, "rate_limit_exceeded")


async def test_tokens_used_up_refuse_the_next_request(front: FrontApp) -> None:
    assert (await chat(front, "sk-thrifty")).status_code == 200
    refused = await chat(front, "sk-thrifty")
    assert code_of(refused) == (429, "rate_limit_exceeded")
    assert "5 tokens a minute" in refused.json()["error"]["message"]


async def test_each_key_has_its_own_part_of_the_prefix_cache(front: FrontApp, settings: Settings) -> None:
    for key, salt in (("sk-all", ""), ("sk-all", ""), ("sk-second", ""), ("sk-all", "mine"), ("sk-second", "mine")):
        assert (await chat(front, key, **({"cache_salt": salt} if salt else {}))).status_code == 200
    one, again, other, mine, others = (request.cache_salt for request in front.chat.requests)
    assert one == again
    assert len({one, other, mine, others}) == 4
    assert mine.endswith("/mine")


async def test_an_operator_may_let_keys_share_prefixes(settings: Settings) -> None:
    front = FrontApp(replace(settings, share_prefix_cache=True))
    for key in ("sk-all", "sk-second"):
        await chat(front, key)
    assert [request.cache_salt for request in front.chat.requests] == ["", ""]


async def test_a_key_s_requests_are_no_more_urgent_than_it_allows(front: FrontApp) -> None:
    for key, priority in (("sk-some", -9), ("sk-some", 7), ("sk-all", -9)):
        await chat(front, key, priority=priority)
    assert [request.priority for request in front.chat.requests] == [5, 7, 0]


async def test_keys_and_prompts_stay_out_of_logs(front: FrontApp, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with front.client("sk-all") as client:
        body = {"model": "chat", "messages": [{"role": "user", "content": "a private matter"}]}
        await client.post("/v1/chat/completions", json=body)
        await client.post("/v1/chat/completions", json={**body, "n": "a private matter"})
        await client.post("/v2/models/text/generate", json={"PROMPT": "a private matter"})
        await client.post("/v2/models/crashing/infer", json=INFER)
    async with front.client("sk-not-a-key") as client:
        await client.post("/v1/chat/completions", json=body)
    assert "refused path=/v1/chat/completions code=invalid_api_key" in caplog.text
    for secret in ("sk-all", "sk-not-a-key", "private matter"):
        assert secret not in caplog.text


async def test_an_operator_may_have_the_first_characters_of_requests_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    front = FrontApp(Settings(log_request_chars=12))
    async with front.client() as client:
        await client.post(
            "/v1/completions", content=b'{"prompt":"a\n\xc3\xa9bc"}', headers={"content-type": "application/json"}
        )
    assert 'bytes=19 body="{\\"prompt\\":\\"a"\n' in caplog.text


async def test_without_keys_everyone_may_do_everything() -> None:
    front = FrontApp()
    assert front.gate is None
    assert (await chat(front, "", priority=-9)).status_code == 200
    assert (await post(front, "", "/v2/repository/models/ident/load")).status_code == 200
    assert front.chat.requests[0].priority == -9
    assert front.chat.requests[0].cache_salt == ""
