"""A full queue refuses at once and says when to come back; probes are answered all the while."""

import httpx
import pytest

from tests.e2e.conftest import MAX_QUEUED, MAX_RUNNING
from tests.e2e.server_process import LONG, eventually

pytestmark = pytest.mark.slow


def test_one_request_too_many_is_told_to_retry_later_and_probes_are_answered(server):
    body = {**LONG, "model": "chat", "stream": True}
    held = [server.post("/v1/completions", body) for _ in range(MAX_RUNNING + MAX_QUEUED)]
    try:
        assert eventually(lambda: (server.num_running, server.num_waiting) == (MAX_RUNNING, MAX_QUEUED), 30)
        refused = httpx.post(server.url + "/v1/completions", json=body, timeout=20)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["message"].startswith("the model's queue is full")
        for path in ("/health", "/v2/health/live", "/v2/health/ready", "/v1/models"):
            assert server.get(path).status_code == 200
    finally:
        for connection in held:
            connection.close()
    assert eventually(server.is_idle)
    server.openai.completions.create(model="chat", prompt="Hello", max_tokens=2)
