"""API keys on `/infer`, which goes around the application that asks for them elsewhere."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from backends.api.request import InferenceRequest
from gateway.kserve_service import Service
from tests.fakes.kserve import http_server, keyed_service

KEYS = """
[[keys]]
name = "some"
key = "sk-some"
models = ["ident"]
[[keys]]
name = "openai"
key = "sk-openai"
faces = ["openai"]
[[keys]]
name = "serial"
key = "sk-serial"
max_concurrent_requests = 1
[[keys]]
name = "rare"
key = "sk-rare"
requests_per_minute = 1
"""
BODY: dict[str, Any] = {"inputs": [{"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return keyed_service(tmp_path_factory.mktemp("keys"), KEYS)


@pytest.fixture(scope="module", params=["direct", "application"])
def http(kserve: Service, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with http_server(kserve) as where, httpx.Client(base_url=f"http://{where}", timeout=20) as opened:
        if request.param == "direct":
            del opened.headers["accept-encoding"]
        yield opened


def infer(http: httpx.Client, key: str, model: str = "ident", body: Any = BODY) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return http.post(f"/v2/models/{model}/infer", json=body, headers=headers)


@pytest.mark.parametrize(
    ("key", "model", "status"),
    [
        ("", "ident", 401),
        ("sk-other", "ident", 401),
        ("sk-openai", "ident", 403),
        ("sk-some", "ident", 200),
        ("sk-some", "ident_raw", 403),
    ],
)
def test_a_key_opens_what_it_is_for(http: httpx.Client, key: str, model: str, status: int) -> None:
    assert infer(http, key, model).status_code == status


def test_what_a_request_was_charged_is_given_back_however_it_ends(http: httpx.Client) -> None:
    for body, model, status in [
        (BODY, "ident", 200),
        ({"inputs": []}, "ident", 400),
        (BODY, "nope", 404),
        (BODY, "failing", 503),
        (BODY, "crashing", 500),
        (BODY, "ident", 200),
    ]:
        assert infer(http, "sk-serial", model, body).status_code == status


def test_a_request_past_a_keys_limit_is_told_so(kserve: Service, http: httpx.Client) -> None:
    statuses = [infer(http, "sk-rare").status_code for _ in range(2)]
    assert statuses[-1] == 429


def test_a_caller_has_a_cache_salt_of_its_own(http: httpx.Client, kserve: Service) -> None:
    fake: Any = kserve.repository.find("silent")
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v2/models/silent/infer", json=BODY, headers={"authorization": "Bearer sk-serial"}, timeout=0.3)
    taken: InferenceRequest = fake.silenced.get(timeout=10)
    assert len(taken.cache_salt) == 32
