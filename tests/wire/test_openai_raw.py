"""The bytes of the OpenAI face, seen by a socket."""

import asyncio
import json
import resource
import socket
import struct

import httpx
import pytest

from tests.unit.openai_api.face import parse_events, text_of
from tests.unit.openai_api.scripted import ScriptedModel, says
from tests.wire.openai_server import RawConnection, unchunked, wire_server

USER = [{"role": "user", "content": "hi"}]
BODY = {"model": "chat", "messages": USER, "stream": True}
CHAT = "/v1/chat/completions"
NASTY = "a\r\nb\n\nc\u2028d\u2029e\u0085f\x0b\x00 data: x\n\n: y 🎉"


@pytest.fixture(scope="module")
def server():
    with wire_server(max_body_bytes=100_000) as running:
        yield running


def test_the_stream_is_plain_lf_events_and_ends_right_after_done(server):
    server.serve(ScriptedModel(says(NASTY)))
    connection = RawConnection(server.port, CHAT, BODY, "Accept: application/json\r\n")
    raw = connection.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    connection.close()
    head, body, is_complete = unchunked(raw)
    assert is_complete
    assert text_of(parse_events(body)) == NASTY
    lines = {name.lower(): value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n")[1:])}
    assert lines[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert lines[b"cache-control"] == b"no-cache, no-transform"
    assert lines[b"x-accel-buffering"] == b"no"
    assert b"content-encoding" not in lines


def test_tokens_that_wait_for_a_slow_loop_are_chunks_of_their_own(server):
    server.serve(ScriptedModel(says("Hello"), tokens_per_event=2))
    connection = RawConnection(server.port, CHAT, BODY)
    _, body, _ = unchunked(connection.read_until(b"\r\n0\r\n\r\n"))
    connection.close()
    assert [text_of([chunk]) for chunk in parse_events(body)] == ["", "He", "ll", "o"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_reset_connection_frees_the_engine(server, stream):
    model = server.serve(ScriptedModel(says("x" * 1000), gate=asyncio.Semaphore(0)))
    connection = RawConnection(server.port, CHAT, {**BODY, "stream": stream, "n": 2})
    server.call(lambda: model.until_running(2))
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    server.call(lambda: model.until_running(0))
    assert model.num_aborted == 2


def test_one_clients_leaving_does_not_touch_another_of_the_same_id(server):
    model = server.serve(ScriptedModel(says("xyz"), gate=asyncio.Semaphore(0)))
    leaving, staying = (RawConnection(server.port, CHAT, BODY, "X-Request-Id: same\r\n") for _ in range(2))
    server.call(lambda: model.until_running(2))
    leaving.close()
    server.call(lambda: model.until_running(1))
    server.release(model, 10)
    _, body, is_complete = unchunked(staying.read_until(b"\r\n0\r\n\r\n"))
    staying.close()
    assert is_complete
    assert text_of(parse_events(body)) == "xyz"


def test_a_connection_is_good_for_another_request_after_errors_and_streams(server):
    server.serve(ScriptedModel(says("Hello")))
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as client:
        for _ in range(3):
            assert client.post(CHAT, json={"model": "nope", "messages": USER}).status_code == 404
            assert client.post(CHAT, json={**BODY, "temperature": 9}).status_code == 400
            assert text_of(parse_events(client.post(CHAT, json=BODY).content)) == "Hello"
            assert client.post(CHAT, json={"model": "chat", "messages": USER}).status_code == 200


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_large_body_is_refused(server, is_declared):
    def parts():
        for _ in range(100):
            yield b" " * 65536

    content = b"".join(parts()) if is_declared else parts()
    response = httpx.post(server.url + "/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


def test_a_body_without_an_end_fills_no_memory(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(head)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(200):
            connection.sendall(piece)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB, of 200 MiB sent
        assert b" 413 " in connection.recv(4096)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("POST", "/v1/audio/speech", 404, "unknown_url"),
        ("GET", "/v1/models/a%2Fb", 404, "model_not_found"),
    ],
)
def test_every_error_has_the_shape_clients_read(server, method, path, status, code):
    response = httpx.request(method, f"http://127.0.0.1:{server.port}{path}")
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert response.headers["x-request-id"]
    assert ("allow" in response.headers) == (status == 405)


def test_a_plain_answer_has_its_length_and_type(server):
    server.serve(ScriptedModel(says("Hello")))
    for stream in (False, None):
        response = httpx.post(server.url + "/chat/completions", json={**BODY, "stream": stream})
        assert response.headers["content-type"] == "application/json"
        assert int(response.headers["content-length"]) == len(response.content)
        assert json.loads(response.content)["choices"][0]["message"]["content"] == "Hello"


def test_a_stopping_server_finishes_streams_and_says_so_to_those_that_take_too_long():
    with wire_server() as server:
        short = server.serve(ScriptedModel(says("xyz"), name="short", gate=asyncio.Semaphore(0)))
        server.serve(ScriptedModel(says("x" * 1000), name="long", gate=asyncio.Semaphore(0)))
        finishing = RawConnection(server.port, CHAT, {**BODY, "model": "short"})
        lasting = RawConnection(server.port, CHAT, {**BODY, "model": "long"})
        for connection in (finishing, lasting):
            connection.read_until(b'"role":"assistant"')
        server.release(short, 10)
        server.call(lambda: server.face.drain(grace=0.3))
        late = httpx.post(server.url + "/chat/completions", json=BODY)
        _, whole, is_complete = unchunked(finishing.read_until(b"\r\n0\r\n\r\n"))
        _, cut, _ = unchunked(lasting.read_until(b"\r\n0\r\n\r\n"))
        for connection in (finishing, lasting):
            connection.close()
    assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
    assert is_complete
    assert text_of(parse_events(whole)) == "xyz"
    assert b'"code":"shutting_down"' in cut
    assert b"[DONE]" not in cut
