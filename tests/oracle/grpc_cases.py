"""gRPC requests that are sent to a real Triton and to us: the rows of triton spec 2.2 and 2.3."""

from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

FOUR = np.arange(4, dtype=np.float32).tobytes()


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
    set_parameters(message.parameters, parameters or {})
    for output, wanted in (outputs or {}).items():
        set_parameters(message.outputs.add(name=output).parameters, wanted)
    return message


def set_parameters(target: Any, parameters: dict[str, tuple[str, Any]]) -> None:
    for name, (kind, value) in parameters.items():
        setattr(target[name], kind, value)


def repeat(*values: int, **more: Any) -> Any:
    return infer("repeat", (len(values),), (np.array(values, np.int32).tobytes(),), "INT32", **more)


def load(**parameters: tuple[str, Any]) -> Any:
    message = pb.RepositoryModelLoadRequest(model_name="ident")
    set_parameters(message.parameters, parameters)
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
