import asyncio
import gzip
import json
import struct
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as client
import tritonclient.http.aio as aio_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from gateway.kserve_service import Restriction, Service
from tests.fakes.kserve import http_server, service

FOUR: dict[str, Any] = {"name": "IN", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}


@pytest.fixture(scope="module")
def ended() -> list[tuple[InferenceRequest, ServingError | None]]:
    return []


@pytest.fixture(scope="module")
def kserve(ended: list[tuple[InferenceRequest, ServingError | None]]) -> Service:
    return service(max_body_bytes=1 << 20, on_end=lambda request, error: ended.append((request, error)))


@pytest.fixture(scope="module")
def address(kserve: Service) -> Iterator[str]:
    with http_server(kserve) as where:
        yield where


@pytest.fixture(scope="module", params=["direct", "application"])
def http(address: str, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Both ways that a server takes: httpx asks for compressed answers by itself, which only the application gives."""
    with httpx.Client(base_url=f"http://{address}", timeout=20) as opened:
        if request.param == "direct":
            del opened.headers["accept-encoding"]
        yield opened


@pytest.fixture
def triton(address: str) -> Iterator[client.InferenceServerClient]:
    opened = client.InferenceServerClient(address)
    yield opened
    opened.close()


def infer(http: httpx.Client, model: str, *inputs: dict[str, Any], **more: Any) -> httpx.Response:
    return http.post(f"/v2/models/{model}/infer", json={"inputs": list(inputs), **more})


def values(*data: int, datatype: str = "INT32") -> dict[str, Any]:
    return {"name": "IN", "shape": [len(data)], "datatype": datatype, "data": list(data)}


def test_tritonclient_infers_in_binary_and_in_json(triton: client.InferenceServerClient) -> None:
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    for in_binary in (True, False):
        for out_binary in (True, False):
            given_input = client.InferInput("IN", array.shape, "FP32")
            given_input.set_data_from_numpy(array, binary_data=in_binary)
            wanted = client.InferRequestedOutput("OUT", binary_data=out_binary)
            result = triton.infer("ident", [given_input], outputs=[wanted], request_id="7")
            assert np.array_equal(result.as_numpy("OUT"), array)
            assert result.get_response()["id"] == "7"


def test_tritonclient_passes_every_element_of_bytes_and_half_floats(triton: client.InferenceServerClient) -> None:
    elements = np.array([[b"", b"\x00", b"x" * 300, b"\xff\xfe"]], dtype=object)
    halves = np.array([[1.5, -2.0, np.inf]], np.float16)
    for model, array, datatype in (("ident_bytes", elements, "BYTES"), ("ident_fp16", halves, "FP16")):
        given_input = client.InferInput("IN", array.shape, datatype)
        given_input.set_data_from_numpy(array)
        assert np.array_equal(triton.infer(model, [given_input]).as_numpy("OUT"), array)


def test_tritonclient_compresses_both_ways(triton: client.InferenceServerClient) -> None:
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    given_input = client.InferInput("IN", array.shape, "FP32")
    given_input.set_data_from_numpy(array)
    for algorithm in ("gzip", "deflate"):
        result = triton.infer(
            "ident",
            [given_input],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        assert np.array_equal(result.as_numpy("OUT"), array)


def test_tritonclient_reads_what_the_server_knows(triton: client.InferenceServerClient) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("ident", "1")
    assert not triton.is_model_ready("nope")
    assert triton.get_server_metadata()["name"] == "tidegate"
    assert triton.get_model_metadata("ident")["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}]
    assert triton.get_model_config("ident")["name"] == "ident"
    assert {entry["name"] for entry in triton.get_model_repository_index()} >= {"ident", "absent", "bad"}
    statistics = triton.get_inference_statistics("ident")["model_stats"][0]
    assert set(statistics["inference_stats"]) == {
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
    }  # fmt: skip
    assert triton.get_trace_settings()["trace_rate"] == "1000"
    assert triton.get_log_settings()["log_verbose_level"] == 0


def test_tritonclient_changes_and_restores_settings(triton: client.InferenceServerClient) -> None:
    assert triton.update_trace_settings("ident", {"trace_rate": "9"})["trace_rate"] == "9"
    assert triton.get_trace_settings()["trace_rate"] == "1000"
    assert triton.update_trace_settings("ident", {"trace_rate": None})["trace_rate"] == "1000"
    assert triton.update_log_settings({"log_verbose_level": 2})["log_verbose_level"] == 2
    triton.update_log_settings({"log_verbose_level": 0})


def test_tritonclient_loads_and_unloads(triton: client.InferenceServerClient, kserve: Service) -> None:
    triton.load_model("ident", config='{"max_batch_size": 4}', files={"file:1/model.onnx": b"\x00\x01"})
    triton.unload_model("ident", unload_dependents=True)
    repository: Any = kserve.repository
    assert repository.loaded[-1] == ("ident", '{"max_batch_size": 4}', {"file:1/model.onnx": b"\x00\x01"})
    assert repository.unloaded[-1] == ("ident", True)
    with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
        triton.load_model("nope")


def test_tritonclient_uses_shared_memory(triton: client.InferenceServerClient) -> None:
    key = f"/tidegate_http_{uuid.uuid4().hex}"
    path = Path("/dev/shm") / key[1:]
    array = np.arange(16, dtype=np.float32)
    path.write_bytes(array.tobytes())
    try:
        triton.register_system_shared_memory("region", key, 48, offset=16)
        given_input = client.InferInput("IN", [1, 4], "FP32")
        given_input.set_shared_memory("region", 16, offset=16)
        wanted = client.InferRequestedOutput("OUT")
        wanted.set_shared_memory("region", 16, offset=32)
        triton.infer("ident", [given_input], outputs=[wanted])
        assert np.frombuffer(path.read_bytes(), np.float32)[12:].tolist() == [8, 9, 10, 11]
        assert triton.get_system_shared_memory_status("region")[0]["byte_size"] == 48
        triton.unregister_system_shared_memory()
        assert triton.get_system_shared_memory_status() == []
    finally:
        path.unlink()


async def test_tritonclient_aio_infers(address: str) -> None:
    async with aio_client.InferenceServerClient(address) as triton:
        array = np.array([[True, False]])
        given_input = aio_client.InferInput("IN", array.shape, "BOOL")
        given_input.set_data_from_numpy(array)
        results = await asyncio.gather(*(triton.infer("ident_bool", [given_input]) for _ in range(8)))
        assert all(np.array_equal(result.as_numpy("OUT"), array) for result in results)
        with pytest.raises(InferenceServerException, match="unknown model"):
            await triton.infer("nope", [given_input])


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("GET", "/v2/models/ident/versions/9", 404, "Request for unknown model: 'ident' version 9 is not found"),
        ("GET", "/v2/models/ident/versions/x", 404, "Not Found"),
        ("GET", "/v2/foo", 404, "Not Found"),
        ("GET", "/v2/models/ident/infer", 405, "Method Not Allowed"),
        ("DELETE", "/v2/models/ident", 405, "Method Not Allowed"),
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", "/v2/models/nope/ready", 400, "Model version not ready"),
        ("GET", "/v2/models/nope/stats", 400, "requested model 'nope' is not available"),
        ("GET", "/v2/models/ident/versions/7/stats", 400, "requested model version is not available for model 'ident'"),
        ("GET", f"/v2/models/ident/versions/{'9' * 5000}/ready", 400, "Model version not ready"),
        ("POST", "/v2/repository/foo/models/ident/load", 501, "'repository_name' specification is not supported"),
        ("GET", "/v2/systemsharedmemory/region/zz/status", 404, "Unable to find system shared memory region: 'zz'"),
        ("GET", "/v2/models/nope/trace/setting", 400, "Request for unknown model : nope"),
        ("POST", "/v2/models/nope/generate", 404, "Request for unknown model: 'nope' is not found"),
        ("POST", "/v2/models/nope/infer", 404, "Request for unknown model: 'nope' is not found"),
        (
            "POST",
            "/v2/cudasharedmemory/region/x/register",
            400,
            "Shared memory register request has no 'raw_handle' field",
        ),
    ],
)
def test_what_is_not_there_is_answered_in_tritons_words(
    http: httpx.Client, method: str, path: str, status: int, text: str
) -> None:
    response = http.request(method, path)
    assert (response.status_code, response.json()) == (status, {"error": text})


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/trace/setting", {"trace_level": ["XX"]}, 400),
        ("/v2/trace/setting", {"trace_level": "OFF"}, 400),
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}, 400),
        ("/v2/trace/setting", {"trace_rate": "a"}, 400),
        ("/v2/trace/setting", {"trace_file": "x"}, 501),
        ("/v2/trace/setting", {"unknown": 1}, 400),
        ("/v2/logging", {"log_info": "x"}, 400),
        ("/v2/logging", {"log_verbose_level": -1}, 400),
        ("/v2/logging", {"log_format": "xx"}, 400),
        ("/v2/logging", {"log_file": "x"}, 501),
        ("/v2/repository/index", {"ready": "x"}, 400),
        ("/v2/repository/models/ident/load", {"parameters": {"config": 3}}, 400),
        ("/v2/repository/models/ident/load", {"parameters": {"foo": "x"}}, 400),
        ("/v2/repository/models/ident/load", {"parameters": {"file:1/a": "!!"}}, 400),
        ("/v2/systemsharedmemory/region/r/register", {"key": 3, "byte_size": 3}, 400),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/x", "offset": -1, "byte_size": 3}, 400),
    ],
)
def test_control_requests_with_wrong_values_are_refused(
    http: httpx.Client, path: str, body: dict[str, Any], status: int
) -> None:
    response = http.post(path, json=body)
    assert response.status_code == status
    assert response.json()["error"]


def test_errors_of_models_have_their_status(http: httpx.Client) -> None:
    assert (infer(http, "failing", FOUR).status_code, infer(http, "failing", FOUR).json()) == (503, {"error": "boom"})
    crashed = infer(http, "crashing", FOUR)
    assert crashed.status_code == 500
    assert "Traceback" not in crashed.text
    assert "gave no answer" in infer(http, "nothing", FOUR).json()["error"]


def test_a_refused_request_counts_as_a_failure_of_its_model(http: httpx.Client, kserve: Service) -> None:
    statistics: Any = kserve.repository.find("two")
    before = statistics.statistics.snapshot().fail.count
    assert infer(http, "two").status_code == 400
    http.post("/v2/models/two/infer", content=b"{")
    assert statistics.statistics.snapshot().fail.count == before + 1


def test_a_body_over_the_limit_is_refused_before_and_after_decompression(http: httpx.Client) -> None:
    path = "/v2/models/ident/infer"
    plain = http.post(path, content=b" " * (1 << 20) + b"{}")
    chunked = http.post(path, content=iter([b" " * 65536] * 20))
    bomb = http.post(path, content=gzip.compress(b"0" * (64 << 20)), headers={"Content-Encoding": "gzip"})
    for response in (plain, chunked, bomb):
        assert response.status_code == 413
        assert response.json()["error"].endswith("Use --http-max-input-size to increase the limit.")
    assert infer(http, "ident", FOUR).status_code == 200


def test_compressed_bodies_that_are_none_are_refused(http: httpx.Client) -> None:
    body = gzip.compress(json.dumps({"inputs": [FOUR]}).encode())
    path = "/v2/models/ident/infer"
    for content in (b"xx", body[:-9], body + b"xx"):
        assert http.post(path, content=content, headers={"Content-Encoding": "gzip"}).status_code == 400
    unknown = http.post(path, content=b"xx", headers={"Content-Encoding": "br"})
    assert (unknown.status_code, unknown.json()["error"]) == (501, "Unsupported compression type")
    assert unknown.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("gzip, deflate", "gzip"),
        ("deflate;q=0.5, gzip;q=0.2", "deflate"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.5, identity;q=0.5", "gzip"),
        ("identity", None),
        ("*", None),
        ("br", None),
    ],
)
def test_the_answers_coding_is_what_the_client_prefers(http: httpx.Client, accept: str, chosen: str | None) -> None:
    with http.stream(
        "POST", "/v2/models/ident/infer", json={"inputs": [FOUR]}, headers={"Accept-Encoding": accept}
    ) as response:
        raw = b"".join(response.iter_raw())
    assert response.headers.get("content-encoding") == chosen
    plain = {None: bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}[chosen](raw)
    assert json.loads(plain)["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.parametrize("length", ["abc", "-1", "9999"])
def test_a_wrong_header_length_is_refused(http: httpx.Client, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length}
    response = http.post("/v2/models/ident/infer", content=b"{}" + bytes(16), headers=headers)
    assert response.status_code == 400


def test_a_raw_body_is_answered_in_binary(http: httpx.Client) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    response = http.post("/v2/models/ident/infer", content=struct.pack("<4f", 1, 2, 3, 4), headers=headers)
    length = int(response.headers["inference-header-content-length"])
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.content[length:] == struct.pack("<4f", 1, 2, 3, 4)


def test_decoupled_models_need_a_streaming_accept_header(http: httpx.Client) -> None:
    refused = infer(http, "repeat", values(1, 2))
    assert refused.status_code == 501
    assert refused.json()["error"] == "HTTP end point doesn't support models with decoupled transaction policy"


def test_infer_streams_events_or_lines_when_asked(http: httpx.Client) -> None:
    body = {"id": "r", "inputs": [values(1, 2, 3)]}
    events = http.post("/v2/models/repeat/infer", json=body, headers={"Accept": "text/event-stream"})
    lines = http.post("/v2/models/repeat/infer", json=body, headers={"Accept": "application/x-ndjson"})
    assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
    from_events = [json.loads(event.removeprefix("data: ")) for event in events.text.split("\n\n") if event]
    from_lines = [json.loads(line) for line in lines.text.splitlines()]
    for documents in (from_events, from_lines):
        assert [document["outputs"][0]["data"] for document in documents] == [[1], [2], [3]]
        assert {document["id"] for document in documents} == {"r"}


def test_generate_answers_flat_json(http: httpx.Client) -> None:
    text = "a\r\nb\u2028c\x00 data: x"
    response = http.post("/v2/models/text/generate", json={"PROMPT": text, "id": "7", "LIMIT": 3, "other": 1})
    assert response.json() == {"TEXT": text, "COUNT": 3, "id": "7", "model_name": "text", "model_version": "1"}


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"PROMPT": 1}, 400, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"LIMIT": 1}, 400, "expected number of inputs between 1 and 2 but got 1 inputs for model 'text'."),
        ({"PROMPT": ["a", "b"]}, 400, "expected 1 values, got 2"),
        ({"PROMPT": "a", "triton_x": 1}, 400, "parameter keys starting with 'triton_'"),
        ({"PROMPT": "a", "x": [1]}, 400, "parameter 'x' has invalid type"),
        ([1], 400, "expected an object"),
    ],
)
def test_generate_refuses_what_does_not_fit(http: httpx.Client, body: Any, status: int, part: str) -> None:
    for kind in ("generate", "generate_stream"):
        response = http.post(f"/v2/models/text/{kind}", json=body)
        assert response.status_code == status
        assert part in response.json()["error"]


def test_generate_wants_exactly_one_answer(http: httpx.Client) -> None:
    for data in ([], [1, 2]):
        response = http.post("/v2/models/repeat/generate", json={"IN": data})
        assert response.status_code == 500
        assert response.json()["error"].startswith("generate expects model to produce exactly 1 response")
    assert http.post("/v2/models/repeat/generate", json={"IN": [5]}).json()["OUT"] == 5


def test_generate_stream_sends_ascii_events_and_tells_errors_in_the_stream(http: httpx.Client) -> None:
    text = http.post("/v2/models/text/generate_stream", json={"PROMPT": "é\u2028\n"}).text
    assert text.isascii()
    assert json.loads(text.removeprefix("data: "))["TEXT"] == "é\u2028\n"
    late = http.post("/v2/models/repeat/generate_stream", json={"IN": [1, -1]})
    assert late.status_code == 200
    assert late.text.endswith('data: {"error":"neg"}\n\n')
    first = http.post("/v2/models/repeat/generate_stream", json={"IN": [-1]})
    assert (first.status_code, first.text) == (400, 'data: {"error":"neg"}\n\n')
    assert http.post("/v2/models/repeat/generate_stream", json={"IN": []}).text == ""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/silent/infer", {"id": "gone", "inputs": [FOUR]}),
        ("/v2/models/silent/generate", {"id": "gone", "IN": [1, 2, 3, 4]}),
        ("/v2/models/endless/generate_stream", {"id": "gone", "IN": [1]}),
    ],
)
async def test_a_client_that_leaves_cancels_its_request(
    address: str, kserve: Service, path: str, body: dict[str, Any]
) -> None:
    model: Any = kserve.repository.find(path.split("/")[3])
    host, port = address.split(":")
    text = json.dumps(body).encode()
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(text), text))
    taken = await asyncio.to_thread(model.silenced.get, True, 10)
    cancelled = asyncio.Event()
    loop = asyncio.get_running_loop()
    taken.stream.on_cancel(lambda: loop.call_soon_threadsafe(cancelled.set))
    writer.close()
    async with asyncio.timeout(10):
        await cancelled.wait()


def test_every_accepted_request_is_reported_once(
    http: httpx.Client, ended: list[tuple[InferenceRequest, ServingError | None]]
) -> None:
    ended.clear()
    infer(http, "ident", FOUR, id="good")
    infer(http, "failing", FOUR, id="bad")
    http.post("/v2/models/repeat/generate_stream", json={"IN": [1, -1], "id": "late"})
    assert [(request.id, error and error.code) for request, error in ended] == [
        ("good", None),
        ("bad", Code.UNAVAILABLE),
        ("late", Code.INVALID),
    ]


def test_a_restricted_category_asks_for_its_header() -> None:
    restricted = service(restrictions={"inference": Restriction("X-Key", "secret")})
    with http_server(restricted) as where, httpx.Client(base_url=f"http://{where}") as http:
        refused = infer(http, "ident", FOUR)
        assert (refused.status_code, refused.json()["error"]) == (
            403,
            "This API is restricted, expecting header 'X-Key'",
        )
        http.headers["x-key"] = "secret"
        assert infer(http, "ident", FOUR).status_code == 200
        assert http.get("/v2/models/ident").status_code == 200


def test_readiness_follows_the_repository_and_the_stop() -> None:
    stopping = False
    kserve = service(is_stopping=lambda: stopping)
    repository: Any = kserve.repository
    with http_server(kserve) as where, httpx.Client(base_url=f"http://{where}") as http:
        assert http.get("/v2/health/ready").status_code == 200
        repository.ready = False
        assert http.get("/v2/health/ready").status_code == 503
        repository.ready, stopping = True, True
        assert http.get("/v2/health/ready").status_code == 503
        assert http.get("/v2/health/live").status_code == 200


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=60) | st.just(json.dumps({"inputs": [FOUR]}).encode()),
    headers=st.dictionaries(
        st.sampled_from(["Inference-Header-Content-Length", "Content-Encoding", "Accept-Encoding", "Accept"]),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
        | st.sampled_from(["gzip", "deflate", "0", "1", "text/event-stream"]),
    ),
    path=st.sampled_from(["/v2/models/ident/infer", "/v2/models/ident/generate", "/v2/repository/index"]),
)
def test_no_bytes_and_no_headers_make_a_server_error(
    http: httpx.Client, body: bytes, headers: dict[str, str], path: str
) -> None:
    with http.stream("POST", path, content=body, headers=headers) as response:
        b"".join(response.iter_raw())
    assert response.status_code in (200, 400, 413, 501)
