"""gRPC requests that are sent to a real Triton and to us: the rows of triton spec 2.2 and 2.3."""

from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

FOUR = np.arange(4, dtype=np.float32).tobytes()
TWO = np.array([1, 2], np.int32).tobytes()


@dataclass(frozen=True)
class Call:
    """Messages of one stream, or one alone, with metadata or a deadline of their own.

    A stream with `cancel_after` is cancelled by its client after so many answers.
    """

    messages: Any
    metadata: tuple[tuple[str, str], ...] = ()
    timeout: float = 20
    cancel_after: int | None = None


def send(channel: grpc.Channel, case: Any) -> Any:
    """The answer in a form that can be stored. A list of messages goes over one stream."""
    call = case if isinstance(case, Call) else Call(case)
    messages, options = call.messages, {"metadata": call.metadata, "timeout": call.timeout}
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    answers: list[Any] = []
    try:
        if isinstance(messages, list):
            stream = stub.ModelStreamInfer(iter(messages), **options)
            for answer in stream:
                answers.append(MessageToDict(answer, preserving_proto_field_name=True))
                if len(answers) == call.cancel_after:
                    stream.cancel()
            return {"answers": answers}
        return {"answer": MessageToDict(_rpc(stub, messages)(messages, **options), preserving_proto_field_name=True)}
    except grpc.RpcError as error:
        # whose clock is first is chance, and each side has its own words
        text = "" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else error.details()
        return {"answers": answers, "code": error.code().name, "text": text}


def _rpc(stub: Any, message: Any) -> Any:
    return getattr(stub, type(message).__name__.removesuffix("Request"))


def infer(
    model: str = "ident",
    shape: tuple[int, ...] = (1, 4),
    raw: tuple[bytes, ...] = (FOUR,),
    datatype: str = "FP32",
    name: str = "IN",
    outputs: dict[str, dict[str, tuple[str, Any]]] | None = None,
    parameters: dict[str, tuple[str, Any]] | None = None,
    **more: Any,
) -> Any:
    contents = {field: more.pop(field) for field in list(more) if field.endswith("_contents")}
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=raw, **more)
    given = message.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(given.contents, field).extend(values)
    _set(message.parameters, parameters or {})
    for output, wanted in (outputs or {}).items():
        _set(message.outputs.add(name=output).parameters, wanted)
    return message


def pair(
    raw: tuple[bytes, ...] | None = None,
    placed: dict[str, dict[str, tuple[str, Any]]] | None = None,
    outputs: dict[str, dict[str, tuple[str, Any]]] | None = None,
    int_contents: tuple[int, ...] = (),
) -> Any:
    """A request to the model with two inputs; `int_contents` are those of B."""
    message = pb.ModelInferRequest(model_name="two", raw_input_contents=(TWO, TWO[::-1]) if raw is None else raw)
    for name in ("A", "B"):
        given = message.inputs.add(name=name, datatype="INT32", shape=(1, 2))
        _set(given.parameters, (placed or {}).get(name, {}))
    if int_contents:
        message.inputs[1].contents.int_contents.extend(int_contents)
    for name, parameters in (outputs or {}).items():
        _set(message.outputs.add(name=name).parameters, parameters)
    return message


def _set(target: Any, parameters: dict[str, tuple[str, Any]]) -> None:
    for name, (kind, value) in parameters.items():
        setattr(target[name], kind, value)


def repeat(*values: int, **more: Any) -> Any:
    return infer("repeat", (len(values),), (np.array(values, np.int32).tobytes(),), "INT32", **more)


def load(**parameters: tuple[str, Any]) -> Any:
    message = pb.RepositoryModelLoadRequest(model_name="ident")
    _set(message.parameters, parameters)
    return message


def _unload(**parameters: tuple[str, Any]) -> Any:
    message = pb.RepositoryModelUnloadRequest(model_name="nope")
    _set(message.parameters, parameters)
    return message


def _log(**settings: tuple[str, Any]) -> Any:
    message = pb.LogSettingsRequest()
    _set(message.settings, settings)
    return message


EMPTY_FINAL = {"triton_enable_empty_final_response": ("bool_param", True)}
CASES: dict[str, Any] = {
    "plain": infer(id="a"),
    "unknown model": infer("nope"),
    "unknown version": infer(model_version="7"),
    "version not a number": infer(model_version="x"),
    "version negative": infer(model_version="-1"),
    "raw and typed": infer(fp32_contents=[1, 2, 3, 4]),
    "typed": infer(raw=(), fp32_contents=[1, 2, 3, 4]),
    "no data": infer(raw=()),
    "typed of another type": infer(raw=(), int_contents=[1, 2, 3, 4]),
    "typed too short": infer(raw=(), fp32_contents=[1, 2]),
    "typed twice": infer(raw=(), fp32_contents=[1, 2, 3, 4], int_contents=[1]),
    "raw left over": infer(raw=(FOUR, b"x")),
    "raw too short": infer(raw=(FOUR[:8],)),
    "fp16 typed": infer("ident_fp16", (1, 1), (), "FP16", fp32_contents=[1]),
    "datatype unknown": infer(datatype="XX"),
    "datatype of another": infer(datatype="INT32"),
    "shape": infer(shape=(1, 3)),
    "shape negative": infer(shape=(-1, 4)),
    "batch too big": infer(shape=(9, 4), raw=(bytes(144),)),
    "name": infer(name="NO"),
    "bytes typed": infer("ident_bytes", (1, 2), (), "BYTES", bytes_contents=[b"a", b"\xff"]),
    "bool typed": infer("ident_bool", (1, 2), (), "BOOL", bool_contents=[True, False]),
    "uint8 too large": infer("ident_uint8", (1, 1), (), "UINT8", uint_contents=[300]),
    "output unknown": infer(outputs={"ZZ": {}}),
    "classes": infer(outputs={"OUT": {"classification": ("int64_param", 2)}}),
    "classes a text": infer(outputs={"OUT": {"classification": ("string_param", "a")}}),
    "classes negative": infer(outputs={"OUT": {"classification": ("int64_param", -1)}}),
    "reserved parameter": infer(parameters={"triton_x": ("int64_param", 1)}),
    "empty final on unary": infer(parameters=EMPTY_FINAL),
    "empty final a number": infer(parameters={"triton_enable_empty_final_response": ("int64_param", 1)}),
    "sequence id a flag": infer(parameters={"sequence_id": ("bool_param", True)}),
    "sequence id unsigned": infer(parameters={"sequence_id": ("uint64_param", 3)}),
    "sequence start a number": infer(parameters={"sequence_start": ("int64_param", 1)}),
    "priority negative": infer(parameters={"priority": ("int64_param", -1)}),
    "priority unsigned": infer(parameters={"priority": ("uint64_param", 0)}),
    "priority a text": infer(parameters={"priority": ("string_param", "x")}),
    "timeout unsigned": infer(parameters={"timeout": ("uint64_param", 5)}),
    "custom double": infer(parameters={"foo": ("double_param", 1.5)}),
    "decoupled": infer("repeat", (2,), (bytes(8),), "INT32"),
    "model error": infer("failing"),
    "ready of unknown": pb.ModelReadyRequest(name="nope"),
    "metadata": pb.ModelMetadataRequest(name="text"),
    "metadata of unknown": pb.ModelMetadataRequest(name="nope"),
    "config of unknown": pb.ModelConfigRequest(name="nope"),
    "statistics of unknown": pb.ModelStatisticsRequest(name="nope"),
    "index of a named repository": pb.RepositoryIndexRequest(repository_name="x"),
    "load in a named repository": pb.RepositoryModelLoadRequest(repository_name="x", model_name="ident"),
    "load with unknown parameter": load(foo=("string_param", "x")),
    "load with config a number": load(config=("int64_param", 1)),
    "load of unknown": pb.RepositoryModelLoadRequest(model_name="nope"),
    "trace": pb.TraceSettingRequest(),
    "trace of unknown": pb.TraceSettingRequest(model_name="nope"),
    "log": pb.LogSettingsRequest(),
    "region unknown": pb.SystemSharedMemoryStatusRequest(name="zz"),
    "region not there": pb.SystemSharedMemoryRegisterRequest(name="x", key="/nope", byte_size=4),
    "stream": [infer(id="1"), infer(id="2")],
    "stream decoupled": [repeat(1, 2, id="r")],
    "stream decoupled with empty final": [repeat(1, 2, id="r", parameters=EMPTY_FINAL)],
    "stream no answer": [repeat(id="r")],
    "stream no answer with empty final": [repeat(id="r", parameters=EMPTY_FINAL)],
    "stream decoupled error": [repeat(1, -1, id="r")],
    "stream unknown model": [infer("nope", id="u")],
    "stream wrong shape": [infer(id="b", shape=(1, 3))],
    "stream model error": [infer("failing", id="f")],
    "stream ordinary with empty final": [infer(id="1", parameters=EMPTY_FINAL)],
}

GRPC_ERRORS = (("triton_grpc_error", "true"),)
SERVER_CASES: dict[str, Any] = {
    "live": pb.ServerLiveRequest(),
    "ready of a model": pb.ModelReadyRequest(name="ident"),
    "ready of unknown version": pb.ModelReadyRequest(name="ident", version="7"),
    "ready of a version that is no number": pb.ModelReadyRequest(name="ident", version="x"),
    "ready of a broken model": pb.ModelReadyRequest(name="broken"),
    "broken model": infer("broken"),
    "raising": infer("raising"),
    "ensemble": infer("chain", name="X", id="e"),
    "ensemble of a failing step": infer("chain_failing", name="X"),
    "sequence without id": infer("seq"),
    "sequence without start": infer("seq", parameters={"sequence_id": ("int64_param", 7)}),
    "sequence of a name": infer(
        "seq",
        parameters={
            "sequence_id": ("string_param", "abc"),
            "sequence_start": ("bool_param", True),
            "sequence_end": ("bool_param", True),
        },
    ),
    "headers as a parameter": infer(parameters={"headers": ("string_param", "x")}),
    "deadline": Call(infer("slow", (1, 1), (np.float32(1.5).tobytes(),)), timeout=0.3),
    "int8 typed": infer("ident_int8", (1, 2), (), "INT8", int_contents=[-1, 2]),
    "int16 typed": infer("ident_int16", (1, 2), (), "INT16", int_contents=[-1, 2]),
    "int64 typed": infer("ident_int64", (1, 2), (), "INT64", int64_contents=[-1, 2]),
    "uint16 typed": infer("ident_uint16", (1, 2), (), "UINT16", uint_contents=[1, 2]),
    "uint32 typed": infer("ident_uint32", (1, 2), (), "UINT32", uint_contents=[1, 2]),
    "uint64 typed": infer("ident_uint64", (1, 2), (), "UINT64", uint64_contents=[1, 2]),
    "fp64 typed": infer("ident_fp64", (1, 2), (), "FP64", fp64_contents=[1, 2]),
    "uint8 typed wrongly": infer("ident_uint8", (1, 2), (), "UINT8", int_contents=[1, 2]),
    "bf16 typed": infer("ident_bf16", (1, 1), (), "BF16", fp32_contents=[1]),
    "fp16 raw": infer("ident_fp16", (1, 2), (b"\0<\0@",), "FP16"),
    "two outputs named in another order": pair(outputs={"OUT_B": {}, "OUT_A": {}}),
    "two outputs, none named": pair(),
    "one raw for two inputs": pair(raw=(TWO,)),
    "raw for one, typed for another": pair(raw=(TWO,), int_contents=(3, 4)),
    "time-out": infer(parameters={"timeout": ("int64_param", 5_000_000)}),
    "time-out a text": infer(parameters={"timeout": ("string_param", "5")}),
    "custom parameters of every kind": infer(
        parameters={
            "a": ("bool_param", True),
            "b": ("int64_param", -1),
            "c": ("string_param", "x"),
        }
    ),
    "custom unsigned": infer(parameters={"a": ("uint64_param", 2**63)}),
    "raw and typed of nothing": infer(fp32_contents=[]),
    "unload with unknown parameter": _unload(foo=("bool_param", True)),
    "unload with a wrong parameter": _unload(unload_dependents=("string_param", "x")),
    "region of cuda": pb.CudaSharedMemoryStatusRequest(name="zz"),
    "region of cuda without handle": pb.CudaSharedMemoryRegisterRequest(name="x", byte_size=4),
    "log with a wrong value": _log(log_info=("string_param", "x")),
    "log file": _log(log_file=("string_param", "x")),
    "stream goes on after an error": [infer("nope", id="u"), infer(id="1"), infer(id="b", shape=(1, 3)), infer(id="2")],
    "stream goes on after a model's error": [infer("failing", id="f"), infer(id="1")],
    "stream of a sequence": [
        infer(
            "seq",
            id=str(turn),
            parameters={
                "sequence_id": ("int64_param", 12),
                "sequence_start": ("bool_param", turn == 0),
                "sequence_end": ("bool_param", turn == 2),
            },
        )
        for turn in range(3)
    ],
    "stream in request order": [
        infer("slow", (1, 1), (np.float32(delay).tobytes(),), id=str(turn))
        for turn, delay in enumerate((0.3, 0.0, 0.1))
    ],
    "stream of grpc errors": Call([infer("failing", id="f")], GRPC_ERRORS),
    "stream of grpc errors, decoupled": Call([repeat(1, -1, id="r")], GRPC_ERRORS),
    "stream of grpc errors, unknown model": Call([infer("nope", id="u")], GRPC_ERRORS),
    "stream of grpc errors, none": Call([infer(id="1")], GRPC_ERRORS),
    "stream deadline": Call([infer("slow", (1, 1), (np.float32(1.5).tobytes(),), id="s")], timeout=0.3),
    "stream ensemble": [infer("chain", name="X", id="e"), infer("chain_failing", name="X", id="f")],
    "stream of many models": [infer(id="1"), pair(), infer("ident_raw", (4,), id="3")],
    "empty stream": [],
}


def _register(name: str) -> Any:
    return pb.SystemSharedMemoryRegisterRequest(name=name, key="/tidegate_oracle", byte_size=64)


IN_REGION = {"shared_memory_region": ("string_param", "g"), "shared_memory_byte_size": ("int64_param", 8)}
OUT_REGION = {**IN_REGION, "shared_memory_offset": ("int64_param", 32)}

# each step's answer counts
SCENARIOS: dict[str, list[Any]] = {
    "data in a region": [
        _register("g"),
        _register("g"),
        pb.SystemSharedMemoryStatusRequest(),
        pair(raw=(TWO,), placed={"A": IN_REGION}),
        pair(raw=(TWO,), placed={"B": IN_REGION}),
        pair(raw=(), placed={"A": IN_REGION, "B": IN_REGION}),
        pair(outputs={"OUT_A": OUT_REGION, "OUT_B": {}}),
        pb.SystemSharedMemoryUnregisterRequest(name="g"),
        pair(raw=(TWO,), placed={"A": IN_REGION}),
        pb.SystemSharedMemoryUnregisterRequest(name="g"),
        pb.SystemSharedMemoryStatusRequest(name="g"),
    ],
}
