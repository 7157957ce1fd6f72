import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from backends.api.errors import ServingError
from backends.api.request import InferenceRequest
from gateway import kserve_grpc
from gateway.kserve_grpc import GrpcOptions
from gateway.kserve_service import Restriction, Service
from tests.fakes.kserve import echo, grpc_server, service

RAW = np.arange(4, dtype=np.float32).tobytes()


@pytest.fixture(scope="module")
def ended() -> "queue.SimpleQueue[tuple[InferenceRequest, ServingError | None]]":
    return queue.SimpleQueue()


@pytest.fixture(scope="module")
def kserve(ended: "queue.SimpleQueue[tuple[InferenceRequest, ServingError | None]]") -> Service:
    return service(max_body_bytes=8 << 20, on_end=lambda request, error: ended.put((request, error)))


@pytest.fixture(scope="module", params=["direct", "threads"])
def address(kserve: Service, request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways that a server takes: around grpc's threads, or on them where grpc is built otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "threads":
            patch.setattr(kserve_grpc, "direct_calls", lambda *_: None)
        with grpc_server(kserve) as where:
            yield where


@pytest.fixture(scope="module")
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def triton(address: str) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(address) as opened:
        yield opened


def request(
    model: str = "ident",
    shape: Sequence[int] = (1, 4),
    raw: Sequence[bytes] = (RAW,),
    datatype: str = "FP32",
    **more: Any,
) -> Any:
    parameters = more.pop("parameters", {})
    contents = more.pop("contents", {})
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=raw, **more)
    given_input = message.inputs.add(name="IN", datatype=datatype, shape=shape)
    for name, (kind, value) in parameters.items():
        message.parameters[name].CopyFrom(pb.InferParameter(**{kind: value} if kind else {}))
    for name, items in contents.items():
        getattr(given_input.contents, name).extend(items)
    return message


def repeat(*values: int, **more: Any) -> Any:
    return request("repeat", [len(values)], [np.array(values, np.int32).tobytes()], "INT32", **more)


EMPTY_FINAL = {"triton_enable_empty_final_response": ("bool_param", True)}


def streamed(stub: Any, *messages: Any, **more: Any) -> list[tuple[str, str, int, bool | None]]:
    """(error, id, number of outputs, final flag) of each answer."""
    return [
        (
            answer.error_message,
            answer.infer_response.id,
            len(answer.infer_response.outputs),
            answer.infer_response.parameters["triton_final_response"].bool_param
            if "triton_final_response" in answer.infer_response.parameters
            else None,
        )
        for answer in stub.ModelStreamInfer(iter(messages), timeout=20, **more)
    ]


def test_tritonclient_infers(triton: client.InferenceServerClient) -> None:
    array = np.array([[b"", b"\x00", b"x" * 300, b"\xff"]], dtype=object)
    given_input = client.InferInput("IN", array.shape, "BYTES")
    given_input.set_data_from_numpy(array)
    result = triton.infer("ident_bytes", [given_input], request_id="7", compression_algorithm="gzip")
    assert np.array_equal(result.as_numpy("OUT"), array)
    assert result.get_response().id == "7"


def test_tritonclient_reads_and_changes_what_the_server_knows(triton: client.InferenceServerClient) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("ident")
    assert not triton.is_model_ready("nope")
    assert list(triton.get_model_metadata("ident").inputs[0].shape) == [-1, 4]
    assert triton.get_model_config("ident").config.max_batch_size == 8
    assert triton.get_server_metadata().name == "tidegate"
    assert {entry.name for entry in triton.get_model_repository_index().models} >= {"ident", "absent"}
    assert triton.get_inference_statistics("ident").model_stats[0].name == "ident"
    assert triton.update_trace_settings("ident", {"trace_rate": "9"}).settings["trace_rate"].value == ["9"]
    assert triton.update_trace_settings("ident", {"trace_rate": None}).settings["trace_rate"].value == ["1000"]
    assert triton.update_log_settings({"log_info": True}).settings["log_info"].bool_param
    triton.load_model("ident", config="{}", files={"file:1/a": b"x"})
    triton.unload_model("ident")
    assert not triton.get_system_shared_memory_status().regions


async def test_tritonclient_aio_infers_and_streams(address: str) -> None:
    async with aio_client.InferenceServerClient(address) as triton:
        array = np.array([1, 2, 3], np.int32)
        given_input = aio_client.InferInput("IN", array.shape, "INT32")
        given_input.set_data_from_numpy(array)

        async def requests() -> Any:
            yield {"model_name": "repeat", "inputs": [given_input]}

        outputs = []
        async for result, error in triton.stream_infer(requests()):
            assert error is None
            outputs += result.as_numpy("OUT").tolist()
        assert outputs == [1, 2, 3]


def test_tritonclient_streams_and_stops(triton: client.InferenceServerClient) -> None:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    triton.start_stream(lambda result, error: answers.put((result, error)))
    given_input = client.InferInput("IN", [2], "INT32")
    given_input.set_data_from_numpy(np.array([4, 5], np.int32))
    triton.async_stream_infer("repeat", [given_input], request_id="a")
    assert [answers.get(timeout=10)[0].as_numpy("OUT").tolist() for _ in range(2)] == [[4], [5]]
    triton.stop_stream()


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (request("nope"), "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        (
            request(model_version="x"),
            "INVALID_ARGUMENT",
            (
                "failed to get model version from specified version string 'x' (details: stol), "
                "version should be an integral value > 0"
            ),
        ),
        *(
            (
                request(model_version=version),
                "INVALID_ARGUMENT",
                (
                    f"failed to get model version from specified version string '{version}' (details: stol), "
                    "version should be an integral value > 0"
                ),
            )
            for version in ("+1", " 1", "1_0", "\u0663", "-")
        ),
        (
            request(model_version="-1"),
            "INVALID_ARGUMENT",
            "invalid model version specified '-1' , version should be an integral value > 0",
        ),
        (request(model_version="0"), "NOT_FOUND", "Request for unknown model: 'ident' version 0 is not found"),
        (
            request(parameters={"custom": ("", None)}),
            "INVALID_ARGUMENT",
            "invalid value type for 'custom' parameter, expected int64_param, bool_param, or string_param.",
        ),
        (
            request(contents={"fp32_contents": [1, 2, 3, 4]}),
            "INVALID_ARGUMENT",
            "contents field must not be specified when using raw_input_contents for 'IN' for model 'ident'",
        ),
        (
            request(raw=[]),
            "INVALID_ARGUMENT",
            "unable to find data for input tensor 'IN' for model 'ident' in request.",
        ),
        (
            request(raw=[], contents={"int_contents": [1, 2, 3, 4]}),
            "INVALID_ARGUMENT",
            (
                "unexpected explicit tensor data for input tensor 'IN' for model 'ident' of type 'INT32', "
                "expected datatype 'FP32'"
            ),
        ),
        (
            request(raw=[RAW, b"x"]),
            "INVALID_ARGUMENT",
            "expected 1 entries in raw_input_contents for model 'ident', got 2",
        ),
        (
            request("repeat", [1], [bytes(4)], "INT32"),
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (request("failing"), "UNAVAILABLE", "boom"),
        (
            request(parameters={"timeout": ("uint64_param", 5)}),
            "INVALID_ARGUMENT",
            "invalid value type for 'timeout' parameter, expected int64_param.",
        ),
        (
            request(parameters={"priority": ("int64_param", -1)}),
            "INVALID_ARGUMENT",
            "invalid value for 'priority', expected value >= 0.",
        ),
        (
            request(shape=(-1, 4)),
            "INVALID_ARGUMENT",
            "[request id: <id_unknown>] inference request batch-size must be >= 1 for 'ident', got -1",
        ),
        (
            request("ident_uint8", (1, 1), [], "UINT8", contents={"uint_contents": [300]}),
            "INVALID_ARGUMENT",
            "input tensor 'IN' for model 'ident_uint8' has a value outside 0 to 255, what UINT8 can hold",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_tritons_words(stub: Any, message: Any, status: str, text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message, timeout=10)
    assert (caught.value.code().name, caught.value.details()) == (status, text)


def test_typed_contents_are_read_by_datatype(stub: Any) -> None:
    typed = request(raw=[], contents={"fp32_contents": [1, 2, 3, 4]})
    assert np.frombuffer(stub.ModelInfer(typed).raw_output_contents[0], np.float32).tolist() == [1, 2, 3, 4]


def test_a_stream_flags_the_last_answer_of_each_request(stub: Any) -> None:
    assert streamed(stub, request(id="1"), request(id="2")) == [("", "1", 1, True), ("", "2", 1, True)]
    assert streamed(stub, repeat(1, 2, id="r")) == [("", "r", 1, False)] * 2
    with_final = streamed(stub, repeat(1, 2, id="r", parameters=EMPTY_FINAL))
    assert with_final == [("", "r", 1, False), ("", "r", 1, False), ("", "r", 0, True)]


def test_a_request_without_answers_is_silent_or_one_empty_final(stub: Any) -> None:
    assert streamed(stub, repeat(id="r")) == []
    assert streamed(stub, repeat(id="r", parameters=EMPTY_FINAL)) == [("", "r", 0, True)]


def test_errors_travel_in_the_stream_and_do_not_end_it(stub: Any) -> None:
    answers = streamed(
        stub, request("nope", id="u"), request("failing", id="f"), repeat(1, -1, id="r"), request(id="2")
    )
    assert sorted(answers, key=lambda answer: answer[1]) == [
        ("", "2", 1, True),
        ("boom", "f", 0, True),
        ("", "r", 1, False),
        ("neg", "r", 0, True),
        ("Request for unknown model: 'nope' is not found", "u", 0, None),
    ]


def test_a_stream_that_asks_for_grpc_errors_ends_with_the_first(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        streamed(stub, repeat(1, -1, id="r"), request(id="2"), metadata=[("triton_grpc_error", "true")])
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "neg")


def test_ordinary_models_answer_in_request_order(stub: Any, kserve: Service) -> None:
    ids = [str(number) for number in range(50)]
    models = ["ident", "failing", "nope"]
    messages = [request(models[number % 3], id=str(number)) for number in range(50)]
    assert [answer[1] for answer in streamed(stub, *messages)] == ids


def test_a_stream_that_had_no_room_for_a_request_reads_on_when_there_is(stub: Any, kserve: Service) -> None:
    ids = [str(number) for number in range(1030)]
    answers: list[str] = []

    def read() -> None:
        messages = (request("silent", id=name) for name in ids)
        answers.extend(answer.infer_response.id for answer in stub.ModelStreamInfer(messages, timeout=20))

    reader = threading.Thread(target=read)
    reader.start()
    fake: Any = kserve.repository.find("silent")
    for _ in ids:
        echo(fake, taken_by(kserve, "silent"))
    reader.join(20)
    assert answers == ids


def taken_by(kserve: Service, model: str) -> InferenceRequest:
    """The request that a silent model has got, or will."""
    fake: Any = kserve.repository.find(model)
    request: InferenceRequest = fake.silenced.get(timeout=10)
    return request


@pytest.mark.parametrize("model", ["silent", "endless"])
def test_cancelling_a_call_cancels_its_requests(stub: Any, kserve: Service, model: str) -> None:
    message = request() if model == "silent" else repeat(1)
    message.model_name = model
    call = stub.ModelInfer.future(message) if model == "silent" else stub.ModelStreamInfer(iter([message]))
    taken = taken_by(kserve, model)
    cancelled = threading.Event()
    taken.stream.on_cancel(cancelled.set)
    call.cancel()
    assert cancelled.wait(10)


def test_a_passed_deadline_cancels_the_models_work(stub: Any, kserve: Service) -> None:
    message = request("silent")
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    taken = taken_by(kserve, "silent")
    cancelled = threading.Event()
    taken.stream.on_cancel(cancelled.set)
    assert cancelled.wait(10)
    assert taken.deadline is not None


def test_a_call_without_a_deadline_gives_the_model_none(stub: Any, kserve: Service) -> None:
    call = stub.ModelInfer.future(request("silent"))
    assert taken_by(kserve, "silent").deadline is None
    call.cancel()


def test_every_accepted_request_is_reported_once(
    stub: Any, ended: "queue.SimpleQueue[tuple[InferenceRequest, ServingError | None]]"
) -> None:
    streamed(stub, request(id="e1"), request("failing", id="e2"), repeat(1, -1, id="e3"), request("nope", id="e4"))
    reported: dict[str, list[str | None]] = {}
    while len(reported) < 3:
        of, error = ended.get(timeout=5)
        if of.id.startswith("e"):  # an end that another test left comes when it comes
            reported.setdefault(of.id, []).append(error and error.message)
    assert reported == {"e1": [None], "e2": ["boom"], "e3": ["neg"]}


def test_a_message_over_the_limit_is_refused(stub: Any) -> None:
    message = request("ident_bytes", (1, 1), [bytes(9 << 20)], "BYTES")
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message, timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    large = (6_000_000).to_bytes(4, "little") + bytes(6_000_000)
    with pytest.raises(grpc.RpcError, match="larger than max"):  # the client's own limit: the server did answer
        stub.ModelInfer(request("ident_bytes", (1, 1), [large], "BYTES"), timeout=20)


@pytest.mark.parametrize("letter", ["x", "é", "%"])
def test_a_text_too_long_for_a_status_is_cut(stub: service_pb2_grpc.GRPCInferenceServiceStub, letter: str) -> None:
    for call, message in (
        (stub.ModelInfer, request(letter * 100_000)),
        (stub.ModelMetadata, pb.ModelMetadataRequest(name=letter * 100_000)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(message, timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        details = caught.value.details()
        assert details.startswith(f"Request for unknown model: '{letter}")
        assert details.endswith(f"{letter}... cut")


def test_health_is_told_for_server_and_models(channel: grpc.Channel, kserve: Service) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", "inference.GRPCInferenceService", "ident"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == serving
    assert stub.Check(health_pb2.HealthCheckRequest(service="bad")).status != serving
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="nope"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_health_watch_tells_changes(channel: grpc.Channel, kserve: Service) -> None:
    repository: Any = kserve.repository
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=20)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    repository.ready = False
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    repository.ready = True
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([asked]))
    names = {entry.name for entry in answer.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


def test_a_restricted_protocol_asks_for_its_header() -> None:
    restricted = service(restrictions={"inference": Restriction("key", "secret")})
    with grpc_server(restricted) as where, grpc.insecure_channel(where) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request())
        assert caught.value.details() == ("This protocol is restricted, expecting header 'triton-grpc-protocol-key'")
        assert stub.ModelInfer(request(), metadata=[("triton-grpc-protocol-key", "secret")]).model_name == "ident"


def test_a_port_that_is_taken_is_told() -> None:
    with grpc_server(service()) as where:
        port = int(where.split(":")[1])
        with pytest.raises(ServingError, match="already in use"), grpc_server(service(), GrpcOptions(port=port)):
            pass


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(-3, 9) | st.just(2**62), max_size=3),
    raw=st.lists(st.binary(max_size=20), max_size=2),
    datatype=st.sampled_from(["FP32", "INT32", "BYTES", "FP16", "BF16", "XX", ""]),
    model=st.sampled_from(["ident", "ident_var", "ident_bytes", "ident_fp16", "ident_raw"]),
    key=st.sampled_from(["priority", "timeout", "sequence_id", "triton_x", "other", "shared_memory_region"]),
    value=st.tuples(st.just("int64_param"), st.integers(-2, 2))
    | st.tuples(st.just("string_param"), st.text(max_size=3)),
)
def test_no_message_makes_a_server_error(
    stub: Any, shape: list[int], raw: list[bytes], datatype: str, model: str, key: str, value: tuple[str, Any]
) -> None:
    message = request(model, shape, raw, datatype, parameters={key: value})
    try:
        stub.ModelInfer(message, timeout=10)
        outcome = "OK"
    except grpc.RpcError as error:
        outcome = error.code().name
    assert outcome in ("OK", "INVALID_ARGUMENT", "NOT_FOUND")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_tls_with_the_servers_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    options = GrpcOptions(port=0, server_cert=certificate, server_key=key)
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    with grpc_server(service(), options) as where, grpc.secure_channel(where, credentials) as channel:
        assert (
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request(), timeout=10).model_name == "ident"
        )
