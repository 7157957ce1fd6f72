"""Nonsense at every door of a real server: no 5xx but where the protocol's table has one, no crash, no growth."""

import json
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from backends.api.errors import ServingError
from model_repository.pbtxt import parse_json, parse_text
from tests.e2e.server_process import START, ServerProcess, eventually
from tests.fuzz.strategies import MODELS, bodies, documents, messages, streams
from tests.oracle import grpc_cases, http_cases
from tests.oracle.triton_models import write_repository

pytestmark = pytest.mark.slow

MiB = 1 << 20
MANY = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
# the 5xx that the table has: what is not offered, models that fail, and what Triton calls its own fault
ALLOWED = re.compile(
    r"Unsupported compression type|decoupled transaction policy|not supported|is loading|boom|failed to poll|"
    r"exactly 1 response|shared memory region|shared memory size|can not be updated through network protocol"
)
METHODS = [method for method in vars(service_pb2_grpc.GRPCInferenceServiceServicer) if method[0].isupper()]
SERVER_FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = write_repository(tmp_path_factory.mktemp("fuzz") / "models")
    running = ServerProcess(
        root,
        *("--model-control-mode=explicit", "--allow-client-shm=true", "--exit-on-error=false"),
        *(f"--load-model={name}" for name in (*MODELS[:-1], "failing")),
    )
    assert eventually(running.is_ready, START)
    yield running
    log = "".join(running.lines)
    running.stop()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address("GRPCInferenceService")) as opened:
        yield opened


def check(response: httpx.Response) -> None:
    assert response.status_code < 500 or ALLOWED.search(response.text), f"{response.status_code} {response.text[:500]}"


@MANY
@given(
    model=st.sampled_from(MODELS),
    body=bodies(),
    path=st.sampled_from(["infer", "infer", "generate", "generate_stream"]),
)
def test_bodies_and_frames(http: httpx.Client, model: str, body: tuple[bytes, dict[str, str]], path: str) -> None:
    content, headers = body
    check(http.post(f"/v2/models/{model}/{path}", content=content, headers=headers))


@FEW
@given(
    path=st.sampled_from(
        [
            "/v2/repository/index",
            "/v2/repository/models/nope/load",
            "/v2/repository/models/nope/unload",
            "/v2/systemsharedmemory/region/x/register",
            "/v2/cudasharedmemory/region/x/register",
            "/v2/trace/setting",
            "/v2/models/ident/trace/setting",
            "/v2/logging",
        ]
    ),
    document=documents(),
)
def test_controls(http: httpx.Client, path: str, document: Any) -> None:
    check(http.post(path, content=json.dumps(document)))


@FEW
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    parts=st.lists(st.text(max_size=10) | st.sampled_from(["v2", "models", "ident", "versions", "1"]), max_size=6),
)
def test_paths(http: httpx.Client, method: str, parts: list[str]) -> None:
    check(http.request(method, "/" + "/".join(quote(part, safe="") for part in parts)))


@FEW
@given(data=st.binary(max_size=300), head=st.sampled_from([b"", b"POST /v2/models/ident/infer HTTP/1.1\r\n", b"GET "]))
def test_bytes_that_are_no_http(server: ServerProcess, data: bytes, head: bytes) -> None:
    host, port = server.address("HTTPService").rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(head + data)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert not re.match(rb"HTTP/1.1 5\d\d", answer)


@MANY
@given(named=messages())
def test_messages(channel: grpc.Channel, named: tuple[str, bytes]) -> None:
    name, data = named
    call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
    try:
        call(data, timeout=20)
    except grpc.RpcError as error:
        fault = f"{name}: {error.code()} {error.details()}"
        # bytes that are no message at all are answered by the library itself
        is_known = ALLOWED.search(error.details()) or "deserializing request" in error.details()
        assert error.code() not in SERVER_FAULTS or is_known, fault


@FEW
@given(sent=streams(), cancels=st.booleans())
def test_streams(channel: grpc.Channel, sent: list[pb.ModelInferRequest], cancels: bool) -> None:
    call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(sent), timeout=20)
    if cancels:
        call.cancel()
        return
    for answer in call:
        assert "internal" not in answer.error_message.lower(), answer.error_message


@MANY
@given(text=st.text("abc{}[]:\",#'\\ \n0123456789_-.xinputmaxtype", max_size=200))
def test_configs_as_text(text: str) -> None:
    try:
        parse_text(text.encode(), "config.pbtxt")
    except ServingError as error:
        assert error.message.startswith("config.pbtxt")


@MANY
@given(data=st.binary(max_size=200))
def test_configs_as_bytes(data: bytes) -> None:
    try:
        parse_text(data, "config.pbtxt")
    except ServingError as error:
        assert error.message.startswith("config.pbtxt")


@MANY
@given(document=documents())
def test_configs_as_json(document: Any) -> None:
    try:
        parse_json(json.dumps(document), "override")
    except ServingError as error:
        assert error.message.startswith("override")


def test_none_of_it_is_kept(server: ServerProcess, http: httpx.Client, channel: grpc.Channel) -> None:
    """The same nonsense again and again, and memory, threads and files stay where they were."""
    process = psutil.Process(server.pid)

    def storm(rounds: int) -> tuple[int, int, int]:
        for _ in range(rounds):
            for case in http_cases.CASES.values():
                http_cases.send(http, case)
            for call in grpc_cases.CASES.values():
                grpc_cases.send(channel, call)
        return process.memory_info().rss, process.num_threads(), process.num_fds()

    memory, threads, files = storm(5)
    memory_after, threads_after, files_after = storm(15)
    assert memory_after - memory < 10 * MiB
    assert threads_after - threads < 5
    assert files_after - files < 5
    answer = http_cases.send(http, http_cases.CASES["plain"])
    assert answer["status"] == 200
