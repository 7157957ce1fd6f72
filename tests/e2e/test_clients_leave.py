"""Whoever leaves, at whatever point, costs nothing from then on: row, queue place and blocks come back."""

import pytest

from tests.e2e.conftest import MAX_RUNNING
from tests.e2e.server_process import LONG, eventually

pytestmark = pytest.mark.slow

REQUEST = {**LONG, "model": "chat"}


def num_aborted(server) -> float:
    return server.metric("vllm:request_success_total", finished_reason="abort")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_mid_answer_is_forgotten(server, stream):
    before = num_aborted(server)
    connection = server.post("/v1/completions", {**REQUEST, "stream": stream})
    generated = server.metric("vllm:generation_tokens_total")
    assert eventually(lambda: server.metric("vllm:generation_tokens_total") > generated + 3, 30)
    connection.close()
    assert eventually(server.is_idle)
    assert num_aborted(server) == before + 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_the_first_token_gets_none_computed(server, stream):
    before, generated = num_aborted(server), server.metric("vllm:generation_tokens_total")
    long_prompt = {**REQUEST, "prompt": f"{stream} word" * 3000, "max_tokens": 10, "stream": stream}
    connection = server.post("/v1/completions", long_prompt)
    assert eventually(lambda: server.num_running + server.num_waiting, 30)
    connection.close()
    assert eventually(server.is_idle, 10)  # a step that is under way is not broken off
    assert num_aborted(server) == before + 1
    assert server.metric("vllm:generation_tokens_total") == generated


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_the_queue_is_never_run(server, stream):
    before = num_aborted(server)
    running = [server.post("/v1/completions", {**REQUEST, "stream": True}) for _ in range(MAX_RUNNING)]
    assert eventually(lambda: server.num_running == MAX_RUNNING, 30)
    looked_up = server.metric("vllm:prefix_cache_queries_total")
    queued = server.post("/v1/completions", {**REQUEST, "stream": stream})
    assert eventually(lambda: server.num_waiting == 1, 30)
    queued.close()
    assert eventually(lambda: not server.num_waiting)
    assert server.num_running == MAX_RUNNING
    assert server.metric("vllm:prefix_cache_queries_total") == looked_up
    for connection in running:
        connection.close()
    assert eventually(server.is_idle)
    assert num_aborted(server) == before + MAX_RUNNING + 1
