"""SIGTERM lets answers under way end, then tells the rest; a second one does not wait."""

import signal

import httpx
import psutil
import pytest

from tests.e2e.server_process import LONG, START, eventually

pytestmark = pytest.mark.slow

REQUEST = {**LONG, "model": "chat", "stream": True}


def read_all(connection) -> bytes:
    """What comes until the server closes; then we do."""
    with connection:
        connection.settimeout(60)
        data = b""
        while received := connection.recv(65536):
            data += received
        return data


@pytest.fixture
def busy(start):
    """Start a server with a grace time, and some streams that flow; with more than it takes to end within it."""

    def make(grace: float, **request):
        server = start("--exit-timeout-secs", str(grace))
        assert eventually(server.is_ready, START)
        streams = [server.post("/v1/completions", {**REQUEST, **request}) for _ in range(3)]
        assert eventually(lambda: server.num_running == 3, 30)
        return server, streams

    return make


def test_past_the_grace_time_each_stream_ends_with_an_error_event_and_the_exit_code_is_0(busy):
    server, streams = busy(2)
    server.signal(signal.SIGTERM)
    assert eventually(lambda: server.said("stopping"))
    refused = httpx.post(server.url + "/v1/completions", json=REQUEST, timeout=20)
    assert refused.status_code == 503
    assert server.get("/v2/health/ready").status_code == 503
    assert server.get("/v2/health/live").status_code == 200
    for stream in streams:
        data = read_all(stream)
        assert data.count(b'"error"') == 1
        assert b"shutting down" in data
    assert server.exit_code(20) == 0


def test_answers_that_end_within_the_grace_time_are_whole(busy):
    server, streams = busy(60, max_tokens=60)
    server.signal(signal.SIGTERM)
    for stream in streams:
        data = read_all(stream)
        assert b"[DONE]" in data
        assert b'"error"' not in data
    assert server.exit_code(30) == 0


def test_a_second_signal_ends_server_and_engine_at_once(busy):
    server, streams = busy(300)
    engine = server.engine()
    server.signal(signal.SIGTERM)
    assert eventually(lambda: server.said("stopping"))
    server.signal(signal.SIGTERM)
    assert server.exit_code(10) == 128 + signal.SIGTERM
    assert eventually(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    for stream in streams:
        assert b"[DONE]" not in read_all(stream)
