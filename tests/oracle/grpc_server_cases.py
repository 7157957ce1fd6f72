"""What only a whole server shows over gRPC: schedulers, ensembles, memory, models that do not load."""

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.oracle.grpc_cases import Call, infer, repeat, set_parameters

TWO = np.array([1, 2], np.int32).tobytes()
GRPC_ERRORS = (("triton_grpc_error", "true"),)


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
        set_parameters(given.parameters, (placed or {}).get(name, {}))
    if int_contents:
        message.inputs[1].contents.int_contents.extend(int_contents)
    for name, parameters in (outputs or {}).items():
        set_parameters(message.outputs.add(name=name).parameters, parameters)
    return message


def _unload(**parameters: tuple[str, Any]) -> Any:
    message = pb.RepositoryModelUnloadRequest(model_name="nope")
    set_parameters(message.parameters, parameters)
    return message


def _log(**settings: tuple[str, Any]) -> Any:
    message = pb.LogSettingsRequest()
    set_parameters(message.settings, settings)
    return message


CASES: dict[str, Any] = {
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
