"""What a path or a message needs of a key."""

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.key_targets import grpc_target, http_target
from gateway.keys import EVERY_FACE, Face

ADMIN, KSERVE, OPENAI = Face.ADMIN, Face.KSERVE, Face.OPENAI
HEALTH = ["/health", "/health/live", "/health/ready", "/v1/health", "/ping", "/v2/health/live", "/v2/health/ready"]


@pytest.mark.parametrize("path", [*HEALTH, "/", "/console/app.js", "/metrics"])
def test_health_and_the_page_are_open(path: str) -> None:
    assert http_target("GET", path, guard_metrics=False) is None


@pytest.mark.parametrize(
    "path", ["/version", "/docs", "/openapi.json", "/v1/models", "/v2", "/v2/models/a/ready", "/x"]
)
def test_all_else_needs_a_key(path: str) -> None:
    assert http_target("GET", path, guard_metrics=False) is not None


def test_metrics_need_any_key_when_guarded() -> None:
    target = http_target("GET", "/metrics", guard_metrics=True)
    assert target is not None
    assert target.faces == EVERY_FACE


@pytest.mark.parametrize(
    ("method", "path", "faces", "model", "is_work"),
    [
        ("POST", "/v2/models/a/infer", {KSERVE}, "a", True),
        ("POST", "/v2/models/a/versions/2/infer", {KSERVE}, "a", True),
        ("POST", "/v2/models/a/generate_stream", {KSERVE}, "a", True),
        ("GET", "/v2/models/a/config", {KSERVE, ADMIN}, "a", False),
        ("GET", "/v2/models/a/versions/1/stats", {KSERVE, ADMIN}, "a", False),
        ("POST", "/v2/repository/models/a/load", {ADMIN}, "a", False),
        ("POST", "/v2/repository/r/models/a/unload", {ADMIN}, "a", False),
        ("POST", "/v2/systemsharedmemory/region/r/register", {ADMIN}, "", False),
        ("POST", "/v2/models/a/trace/setting", {ADMIN}, "a", False),
        ("POST", "/v2/logging", {ADMIN}, "", False),
        ("GET", "/v2/logging", {KSERVE, ADMIN}, "", False),
        ("POST", "/v2/anything/new", {ADMIN}, "", False),
        ("POST", "/v2/repository/infer", {ADMIN}, "", False),
        ("POST", "/v1/chat/completions", {OPENAI}, "", True),
        ("GET", "/v1/models", {OPENAI}, "", False),
        ("POST", "/tokenize", {OPENAI}, "", True),
        ("POST", "/reset_prefix_cache", {ADMIN}, "", False),
    ],
)
def test_paths_need_a_right(method: str, path: str, faces: set[Face], model: str, is_work: bool) -> None:
    target = http_target(method, path, guard_metrics=False)
    assert target is not None
    assert (target.faces, target.model, target.is_work) == (faces, model, is_work)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/models/stats"), ("POST", "/v2/repository/index")])
def test_what_lists_all_models_is_an_overview(method: str, path: str) -> None:
    target = http_target(method, path, guard_metrics=False)
    assert target is not None
    assert target.is_overview


@pytest.mark.parametrize(
    ("message", "faces", "model"),
    [
        (pb.ModelInferRequest(model_name="a"), {KSERVE}, "a"),
        (pb.ModelMetadataRequest(name="a"), {KSERVE, ADMIN}, "a"),
        (pb.RepositoryModelLoadRequest(model_name="a"), {ADMIN}, "a"),
        (pb.SystemSharedMemoryRegisterRequest(name="r"), {ADMIN}, ""),
        (pb.SystemSharedMemoryStatusRequest(name="r"), {KSERVE, ADMIN}, ""),
        (pb.LogSettingsRequest(), {KSERVE, ADMIN}, ""),
        (pb.LogSettingsRequest(settings={"log_info": {"bool_param": False}}), {ADMIN}, ""),
        (pb.TraceSettingRequest(model_name="a", settings={"trace_level": {"value": ["OFF"]}}), {ADMIN}, "a"),
    ],
)
def test_messages_need_the_same_rights(message: object, faces: set[Face], model: str) -> None:
    target = grpc_target(message)
    assert target is not None
    assert (target.faces, target.model) == (faces, model)


def test_the_server_s_health_is_open_on_grpc() -> None:
    assert grpc_target(pb.ServerLiveRequest()) is None
    assert grpc_target(pb.ServerReadyRequest()) is None
    assert grpc_target(pb.ModelReadyRequest(name="a")) is not None
    overview = grpc_target(pb.ModelStatisticsRequest())
    assert overview is not None
    assert overview.is_overview
