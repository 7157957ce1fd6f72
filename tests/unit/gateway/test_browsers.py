"""Pages of other sites, and what they may have a visitor's browser do."""

from dataclasses import replace

import httpx
import pytest

from gateway.browsers import BrowserRules, host_name, rules_without_keys
from gateway.settings import Settings
from tests.fakes.front import USER, FrontApp

CHAT = "/v1/chat/completions"
BODY = {"model": "chat", "messages": USER}
FRIEND, STRANGER = "https://friend.example", "https://stranger.example"
WITH_KEYS = Settings(api_keys=("sk-1",), cors_allow_origin=(FRIEND,))
WITHOUT_KEYS = Settings(cors_allow_origin=(FRIEND,))
SDK_HEADERS = "authorization,content-type,x-stainless-os,x-stainless-retry-count,x-request-id"


async def preflight(front: FrontApp, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": SDK_HEADERS,
    }
    async with front.client() as client:
        return await client.options(CHAT, headers=headers)


@pytest.mark.parametrize("settings", [WITH_KEYS, WITHOUT_KEYS])
async def test_a_listed_origin_may_send_what_sdks_send(settings: Settings) -> None:
    answer = await preflight(FrontApp(settings), FRIEND)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == FRIEND
    assert answer.headers["access-control-allow-headers"] == SDK_HEADERS
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_cors_is_off_unless_asked_for_and_only_for_those_listed() -> None:
    for front, origin in ((FrontApp(), FRIEND), (FrontApp(WITH_KEYS), STRANGER)):
        assert "access-control-allow-origin" not in (await preflight(front, origin)).headers


async def test_every_error_tells_a_listed_page_what_went_wrong() -> None:
    front = FrontApp(WITH_KEYS, max_body_bytes=100)
    async with front.client("sk-1", origin=FRIEND) as client:
        statuses = {
            401: await client.post(CHAT, json=BODY, headers={"authorization": "Bearer no"}),
            404: await client.post(CHAT, json={**BODY, "model": "absent"}),
            405: await client.get(CHAT),
            413: await client.post(CHAT, content=b" " * 101, headers={"content-type": "application/json"}),
            500: await client.get("/broken"),
        }
    for status, answer in statuses.items():
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == FRIEND
        assert "retry-after" in answer.headers["access-control-expose-headers"]


async def test_a_star_is_everyone_and_is_answered_as_such() -> None:
    front = FrontApp(Settings(cors_allow_origin=("*",)))
    async with front.client(origin=STRANGER) as client:
        answer = await client.post(CHAT, json=BODY)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("media", ["text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", [CHAT, "/v2/models/ident/infer", "/v2/repository/models/ident/unload"])
async def test_a_page_cannot_post_without_a_preflight(path: str, media: str) -> None:
    front = FrontApp()
    headers = {"content-type": media, "origin": "http://localhost:8000"}
    async with front.client() as client:
        assert (await client.post(path, content=b"{}", headers=headers)).status_code == 400
        bare = await client.post(path, headers={"origin": STRANGER})
    assert bare.status_code == 403
    assert front.kserve.repository.unloaded == []  # type: ignore[attr-defined]


async def test_clients_that_are_no_browsers_keep_their_content_types() -> None:
    """curl sends a form's type and tritonclient's aio form text/plain."""
    front = FrontApp()
    async with front.client() as client:
        for media in ("application/x-www-form-urlencoded", "text/plain; charset=utf-8"):
            answer = await client.post("/v2/repository/index", content=b"{}", headers={"content-type": media})
            assert answer.status_code == 200


async def test_the_server_s_own_page_and_listed_ones_may_post_json() -> None:
    front = FrontApp(WITHOUT_KEYS)
    async with front.client() as client:
        for origin, status in (("http://localhost:8000", 200), (FRIEND, 200), (STRANGER, 403), ("null", 403)):
            answer = await client.post(CHAT, json=BODY, headers={"origin": origin})
            assert answer.status_code == status, origin


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1.evil.example"]
)
async def test_a_rebound_name_reaches_nothing_on_loopback(host: str) -> None:
    front = FrontApp()
    async with front.client() as client:
        for path in ("/", "/v1/models", "/v2", "/health"):
            answer = await client.get(path, headers={"host": host})
            assert answer.status_code == 403, path
    assert "--http-allowed-host" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "tidegate.lan:8000"])
async def test_the_names_of_this_machine_are_let_in(host: str) -> None:
    front = FrontApp(Settings(http_allowed_host=("tidegate.lan",)))
    async with front.client() as client:
        assert (await client.get("/v1/models", headers={"host": host})).status_code == 200


def test_a_server_for_a_network_answers_to_any_name_and_one_with_names_to_those() -> None:
    assert rules_without_keys("0.0.0.0", (), ()).hosts is None
    assert rules_without_keys("0.0.0.0", ("a.lan",), ()).hosts == {"a.lan", "0.0.0.0", "localhost", "127.0.0.1", "::1"}
    assert rules_without_keys("127.0.0.1", (), ("https://a",)) == BrowserRules(
        frozenset({"localhost", "127.0.0.1", "::1"}), frozenset({"https://a"})
    )


@pytest.mark.parametrize(
    ("host", "name"), [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.", "a"), ("", "")]
)
def test_host_names_are_read_without_port(host: str, name: str) -> None:
    assert host_name(host) == name


async def test_with_keys_no_name_or_origin_is_asked_for() -> None:
    front = FrontApp(replace(WITH_KEYS, cors_allow_origin=()))
    async with front.client("sk-1", origin=STRANGER, host="a.example") as client:
        assert (await client.post(CHAT, json=BODY)).status_code == 200
