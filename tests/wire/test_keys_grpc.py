"""Keys on gRPC, with the real client."""

import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.kserve_service import Service
from tests.fakes.kserve import grpc_server, keyed_service

KEYS = """
[[keys]]
name = "some"
key = "sk-some"
models = ["ident", "repeat", "silent"]
[[keys]]
name = "openai"
key = "sk-openai"
faces = ["openai"]
[[keys]]
name = "admin"
key = "sk-admin"
faces = ["kserve", "admin"]
[[keys]]
name = "limited"
key = "sk-limited"
max_concurrent_requests = 1
[[keys]]
name = "serial"
key = "sk-serial"
max_concurrent_requests = 1
[[keys]]
name = "rare"
key = "sk-rare"
requests_per_minute = 1
"""


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return keyed_service(tmp_path_factory.mktemp("keys"), KEYS)


@pytest.fixture(scope="module")
def address(kserve: Service) -> Iterator[str]:
    with grpc_server(kserve) as where:
        yield where


@pytest.fixture
def triton(address: str) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(address) as opened:
        yield opened


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def inputs() -> list[Any]:
    given = client.InferInput("IN", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    return [given]


def refusal(call: Any, *args: Any, key: str = "", **more: Any) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call(*args, headers=with_key(key) if key else None, **more)
    assert not key or key not in str(caught.value)
    return str(caught.value.status())


@pytest.mark.parametrize("key", ["", "sk-wrong"])
def test_without_a_right_key_only_health_answers(triton: client.InferenceServerClient, key: str) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    for call, args in (
        (triton.get_server_metadata, ()),
        (triton.get_model_metadata, ("ident",)),
        (triton.is_model_ready, ("ident",)),
        (triton.get_model_repository_index, ()),
        (triton.load_model, ("ident",)),
        (triton.infer, ("ident", inputs())),
    ):
        assert refusal(call, *args, key=key) == "StatusCode.UNAUTHENTICATED", call


def test_the_health_service_is_open_and_reflection_is_not(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        with pytest.raises(grpc.RpcError) as caught:
            list(reflection.ServerReflectionInfo(asked))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        assert list(reflection.ServerReflectionInfo(asked, metadata=[("authorization", "Bearer sk-openai")]))


def test_a_key_uses_its_faces_and_models_alone(triton: client.InferenceServerClient, kserve: Service) -> None:
    assert triton.infer("ident", inputs(), headers=with_key("sk-some")).as_numpy("OUT").sum() == 4
    denied = "StatusCode.PERMISSION_DENIED"
    assert refusal(triton.infer, "ident_raw", inputs(), key="sk-some") == denied
    assert refusal(triton.get_model_config, "ident_raw", key="sk-some") == denied
    assert refusal(triton.get_model_repository_index, key="sk-some") == denied
    assert refusal(triton.get_inference_statistics, key="sk-some") == denied
    assert refusal(triton.unload_model, "ident", key="sk-some") == denied
    assert refusal(triton.infer, "ident", inputs(), key="sk-openai") == denied
    triton.load_model("ident", headers=with_key("sk-admin"))
    assert kserve.repository.loaded[-1][0] == "ident"  # type: ignore[attr-defined]


def test_limits_of_a_key_are_told_as_exhausted(triton: client.InferenceServerClient, kserve: Service) -> None:
    waiting = triton.async_infer("silent", inputs(), lambda result, error: None, headers=with_key("sk-limited"))
    silent: Any = kserve.repository.find("silent")
    request = silent.silenced.get(timeout=10)
    assert refusal(triton.infer, "ident", inputs(), key="sk-limited") == "StatusCode.RESOURCE_EXHAUSTED"
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    request.stream.on_cancel(lambda: ended.put("cancelled"))
    waiting.cancel()
    assert ended.get(timeout=10) == "cancelled"
    triton.infer("ident", inputs(), headers=with_key("sk-rare"))
    assert refusal(triton.infer, "ident", inputs(), key="sk-rare") == "StatusCode.RESOURCE_EXHAUSTED"


def test_a_refused_request_of_a_stream_leaves_the_others_alone(triton: client.InferenceServerClient) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    triton.start_stream(lambda result, error: answers.put((result, error)), headers=with_key("sk-some"))
    triton.async_stream_infer("ident", inputs(), request_id="1")
    triton.async_stream_infer("ident_raw", inputs(), request_id="2")
    triton.async_stream_infer("ident", inputs(), request_id="3")
    got = [answers.get(timeout=10) for _ in range(3)]
    triton.stop_stream()
    assert [error is None for _, error in got] == [True, False, True]
    assert "may not use the model 'ident_raw'" in str(got[1][1])


def test_a_stream_gives_each_request_s_slot_back(triton: client.InferenceServerClient) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    triton.start_stream(lambda result, error: answers.put((result, error)), headers=with_key("sk-serial"))
    for _ in range(5):
        triton.async_stream_infer("ident", inputs())
        assert answers.get(timeout=10)[1] is None
    triton.stop_stream()


def test_each_key_has_its_own_part_of_the_prefix_cache(triton: client.InferenceServerClient, kserve: Service) -> None:
    salts = []
    silent: Any = kserve.repository.find("silent")
    for key in ("sk-some", "sk-admin"):
        call = triton.async_infer("silent", inputs(), lambda result, error: None, headers=with_key(key))
        salts.append(silent.silenced.get(timeout=10).cache_salt)
        call.cancel()
    assert all(salts)
    assert salts[0] != salts[1]
