"""Servers started for their own cases: the rows of triton spec 1.3, 2.2 and 2.3 that need other flags or a fresh server."""

from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.oracle import grpc_cases as grpc
from tests.oracle import http_cases as http
from tests.oracle.grpc_cases import Call
from tests.oracle.http_cases import Case
from tests.oracle.triton_server import ALL_MODELS


@dataclass(frozen=True)
class Start:
    """The flags of a server, written with `_` for `-`, the names of its models, and what it is asked, in order."""

    flags: dict[str, str]
    models: tuple[str, ...]
    http: dict[str, Case] = field(default_factory=dict)
    grpc: dict[str, Any] = field(default_factory=dict)


def _get(path: str) -> Case:
    return Case(path, method="GET")


INDEX = Case("/v2/repository/index")
LOAD, UNLOAD = Case("/v2/repository/models/ident/load"), Case("/v2/repository/models/ident/unload")
INFER = http.infer(http.one())
SECRET = (("triton-grpc-protocol-key", "secret"),)
PARAMETERS = {
    "inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}],
    "parameters": {"custom": 1},
}
NOT_TO_LOAD = {
    "load": LOAD,
    "unload": UNLOAD,
    "load of unknown": Case("/v2/repository/models/nope/load"),
    "still there": INFER,
}
NOT_TO_LOAD_GRPC = {"load": grpc.load(), "unload": pb.RepositoryModelUnloadRequest(model_name="ident")}


def _with_parameters(**headers: str) -> Case:
    return http.infer(PARAMETERS, "parameters", **headers)


def _grpc_parameters(*metadata: tuple[str, str]) -> Call:
    return Call(grpc.infer("parameters", (1,), (bytes(4),)), metadata)


def _watched(count: int) -> Any:
    return grpc.infer("watched", (1,), (count.to_bytes(4, "little"),), "INT32")


STARTS: dict[str, Start] = {
    "every model at start": Start({"model_control_mode": "none"}, ("ident",), NOT_TO_LOAD, NOT_TO_LOAD_GRPC),
    "polling": Start(
        {"model_control_mode": "poll", "repository_poll_secs": "1"}, ("ident",), NOT_TO_LOAD, NOT_TO_LOAD_GRPC
    ),
    "nothing loaded": Start(
        {"model_control_mode": "explicit"},
        ("ident", "failing"),
        {
            "server ready": _get("/v2/health/ready"),
            "index": INDEX,
            "index of what is ready": Case("/v2/repository/index", b'{"ready":true}'),
            "infer": INFER,
            "metadata": _get("/v2/models/ident"),
            "model ready": _get("/v2/models/ident/ready"),
            "load": LOAD,
            "infer once loaded": INFER,
            "index of what is ready now": Case("/v2/repository/index", b'{"ready":true}'),
        },
        {"infer of the other": grpc.infer("failing"), "ready of the other": pb.ModelReadyRequest(name="failing")},
    ),
    "a model fails, readiness is strict": Start(
        {**ALL_MODELS, "strict_readiness": "true"},
        ("ident", "broken"),
        {"server live": _get("/v2/health/live"), "server ready": _get("/v2/health/ready"), "infer": INFER},
        {"server live": pb.ServerLiveRequest(), "server ready": pb.ServerReadyRequest()},
    ),
    "a model fails, readiness is not strict": Start(
        ALL_MODELS,
        ("ident", "broken"),
        {"server ready": _get("/v2/health/ready")},
        {"server ready": pb.ServerReadyRequest()},
    ),
    "restricted": Start(
        {
            "http_restricted_api": "inference,model-repository:X-Key=secret",
            "grpc_restricted_protocol": "inference,model-repository:key=secret",
        },
        ("ident",),
        {
            "infer": INFER,
            "infer with another value": http.infer(http.one(), X_Key="open"),
            "infer with the header": http.infer(http.one(), X_Key="secret"),
            "generate": Case("/v2/models/ident/generate", b"{}"),
            "generate stream": Case("/v2/models/ident/generate_stream", b"{}"),
            "infer of unknown": http.infer(http.one(), "nope"),
            "index": INDEX,
            "load": LOAD,
            "metadata, which is not restricted": _get("/v2/models/ident"),
            "live, which is not restricted": _get("/v2/health/live"),
        },
        {
            "infer": grpc.infer(),
            "infer with another value": Call(grpc.infer(), (("triton-grpc-protocol-key", "open"),)),
            "infer with the header": Call(grpc.infer(), SECRET),
            "stream": [grpc.infer()],
            "stream with the header": Call([grpc.infer()], SECRET),
            "index": pb.RepositoryIndexRequest(),
            "metadata, which is not restricted": pb.ModelMetadataRequest(name="ident"),
        },
    ),
    "a stream is cancelled": Start(
        ALL_MODELS,
        ("watched",),
        grpc={"stream": Call([_watched(250)], cancel_after=2), "the model has seen it": [_watched(0)]},
    ),
    "headers go on to the model": Start(
        {"http_header_forward_pattern": "x-f|^timeout$", "grpc_header_forward_pattern": "x-f|^timeout$"},
        ("parameters",),
        {
            "none": _with_parameters(),
            "one of two": _with_parameters(X_Forward="a", X_Keep="b"),
            "of a reserved name": _with_parameters(timeout="5"),
        },
        {
            "none": _grpc_parameters(),
            "one of two": _grpc_parameters(("x-forward", "a"), ("x-keep", "b")),
            "of a reserved name": _grpc_parameters(("timeout", "5")),
        },
    ),
}
