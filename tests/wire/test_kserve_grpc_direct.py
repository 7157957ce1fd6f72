"""ModelInfer on grpc's core: what a thread for each call gave for free."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from gateway import kserve_grpc
from gateway.kserve_grpc import GrpcOptions, GrpcServer
from gateway.kserve_grpc_direct import direct_calls
from gateway.kserve_service import Service
from tests.fakes.kserve import echo, grpc_server, keyed_service, service


def message(model: str = "ident", values: int = 4, datatype: str = "FP32") -> Any:
    wanted = pb.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4 * values)])
    wanted.inputs.add(name="IN", datatype=datatype, shape=(1, values))
    return wanted


def taken_by(kserve: Service, model: str = "silent") -> InferenceRequest:
    fake: Any = kserve.repository.find(model)
    request: InferenceRequest = fake.silenced.get(timeout=10)
    return request


def answer(kserve: Service, request: InferenceRequest) -> None:
    fake: Any = kserve.repository.find("silent")
    echo(fake, request)


@pytest.fixture
def stub_of() -> Iterator[Callable[[str], Any]]:
    channels: list[grpc.Channel] = []

    def make(address: str) -> Any:
        channels.append(grpc.insecure_channel(address))
        return service_pb2_grpc.GRPCInferenceServiceStub(channels[-1])

    yield make
    for channel in channels:
        channel.close()


def test_many_calls_at_once_each_get_their_own_rows(stub_of: Callable[[str], Any]) -> None:
    with grpc_server(service()) as address:
        stub = stub_of(address)
        calls = {}
        for number in range(200):
            wanted = message("ident_var", 2, "INT32")
            wanted.id = str(number)
            wanted.raw_input_contents[0] = np.array([number, -number], np.int32).tobytes()
            calls[number] = stub.ModelInfer.future(wanted, timeout=20)
        for number, call in calls.items():
            got = call.result()
            assert got.id == str(number)
            assert np.frombuffer(got.raw_output_contents[0], np.int32).tolist() == [number, -number]


def test_a_large_message_comes_back_whole(stub_of: Callable[[str], Any]) -> None:
    large = message("ident_var", 200_000, "INT32")
    large.raw_input_contents[0] = np.arange(200_000, dtype=np.int32).tobytes()
    with grpc_server(service()) as address:
        assert stub_of(address).ModelInfer(large, timeout=20).raw_output_contents[0] == large.raw_input_contents[0]


def test_calls_past_the_limit_are_told_and_room_is_given_back(stub_of: Callable[[str], Any]) -> None:
    kserve = service()
    with grpc_server(kserve, GrpcOptions(port=0, max_concurrent=1)) as address:
        stub = stub_of(address)
        first = stub.ModelInfer.future(message("silent"), timeout=20)
        waiting = taken_by(kserve)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        answer(kserve, waiting)
        first.result()
        assert any(_is_answered(stub) for _ in range(1000))


def _is_answered(stub: Any, metadata: Any = ()) -> bool:
    try:
        stub.ModelInfer(message(), metadata=metadata, timeout=20)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return False
    return True


def test_bytes_that_are_no_message_are_refused_and_harm_nobody(stub_of: Callable[[str], Any]) -> None:
    with grpc_server(service()) as address, grpc.insecure_channel(address) as channel:
        raw = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            raw(b"\xff\xff\xff", timeout=20)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert _is_answered(stub_of(address))


def test_an_error_text_that_is_no_unicode_still_arrives(stub_of: Callable[[str], Any]) -> None:
    kserve = service()
    with grpc_server(kserve) as address:
        call = stub_of(address).ModelInfer.future(message("silent"), timeout=20)
        taken_by(kserve).stream.fail(ServingError(Code.INVALID, "half \ud800 a pair"))
        assert call.exception().code() is grpc.StatusCode.INVALID_ARGUMENT
        assert call.exception().details() == "half ? a pair"


def test_stopping_cancels_what_is_not_answered_in_time(stub_of: Callable[[str], Any]) -> None:
    kserve = service()
    with grpc_server(kserve) as address:
        call = stub_of(address).ModelInfer.future(message("silent"), timeout=20)
        waiting = taken_by(kserve)
    assert isinstance(call.exception(), grpc.RpcError)
    assert waiting.stream.cancelled


def test_stopping_waits_for_an_answer_under_way(stub_of: Callable[[str], Any]) -> None:
    kserve = service()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = GrpcServer(kserve, loop, GrpcOptions(port=0))
    call = stub_of(f"127.0.0.1:{server.start()}").ModelInfer.future(message("silent"), timeout=20)
    waiting = taken_by(kserve)
    stopped = asyncio.run_coroutine_threadsafe(server.stop(20), loop)
    answer(kserve, waiting)
    assert call.result().model_name == "silent"
    stopped.result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_a_stream_that_is_open_does_not_keep_the_server_from_stopping(stub_of: Callable[[str], Any]) -> None:
    done = threading.Event()

    def requests() -> Iterator[Any]:
        yield message()
        done.wait(20)

    with grpc_server(service()) as address:
        answers = stub_of(address).ModelStreamInfer(requests())
        assert next(answers).infer_response.model_name == "ident"
    try:
        with pytest.raises(grpc.RpcError):
            next(answers)
    finally:
        done.set()


def test_what_is_no_message_ends_the_stream_with_a_reason(stub_of: Callable[[str], Any]) -> None:
    with grpc_server(service()) as address, grpc.insecure_channel(address) as channel:
        raw = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        good = message().SerializeToString()
        answers = raw(iter([good, b"\xff\xff", good]), timeout=20)
        with pytest.raises(grpc.RpcError) as caught:
            list(answers)
    assert caught.value.details() == "Exception deserializing request!"


def test_a_large_message_in_a_stream_comes_back_whole_and_in_its_turn(stub_of: Callable[[str], Any]) -> None:
    large, small = message("ident_var", 200_000, "INT32"), message("ident_var", 2, "INT32")
    large.id, small.id = "large", "small"
    large.raw_input_contents[0] = np.arange(200_000, dtype=np.int32).tobytes()
    with grpc_server(service()) as address:
        answers = list(stub_of(address).ModelStreamInfer(iter([small, large, small]), timeout=20))
    assert [answer.infer_response.id for answer in answers] == ["small", "large", "small"]
    assert answers[1].infer_response.raw_output_contents[0] == large.raw_input_contents[0]


def test_where_grpc_is_built_otherwise_a_thread_serves_each_call(
    monkeypatch: pytest.MonkeyPatch, stub_of: Callable[[str], Any]
) -> None:
    assert direct_calls(object(), None, None, 1) is None  # type: ignore[arg-type]
    monkeypatch.setattr(kserve_grpc, "direct_calls", lambda *_: None)
    kserve = service()
    with grpc_server(kserve) as address:
        stub = stub_of(address)
        assert _is_answered(stub)
        with pytest.raises(grpc.RpcError, match="boom"):
            stub.ModelInfer(message("failing"), timeout=20)
        call = stub.ModelInfer.future(message("silent"), timeout=20)
        waiting = taken_by(kserve)
        cancelled = threading.Event()
        waiting.stream.on_cancel(cancelled.set)
        call.cancel()
        assert cancelled.wait(10)


KEYS = """
[[keys]]
name = "serial"
key = "sk-serial"
max_concurrent_requests = 1
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Service:
    return keyed_service(tmp_path, KEYS)


def test_without_a_key_no_message_is_even_read(guarded: Service) -> None:
    with grpc_server(guarded) as address, grpc.insecure_channel(address) as channel:
        raw = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for content in (b"\xff\xff\xff", message().SerializeToString()):
            with pytest.raises(grpc.RpcError) as caught:
                raw(content, timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_however_a_call_ends_its_key_gets_its_place_back(guarded: Service, stub_of: Callable[[str], Any]) -> None:
    key = (("authorization", "Bearer sk-serial"),)
    with grpc_server(guarded) as address:
        stub = stub_of(address)
        for wrong in (message("nope"), message(values=3), message("failing"), message("crashing"), message("nothing")):
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(wrong, metadata=key, timeout=20)
            assert caught.value.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED
        call = stub.ModelInfer.future(message("silent"), metadata=key, timeout=20)
        waiting = taken_by(guarded)
        released = threading.Event()
        waiting.stream.on_cancel(released.set)
        call.cancel()
        assert released.wait(10)
        assert any(_is_answered(stub, key) for _ in range(1000))
