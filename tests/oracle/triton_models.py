"""The model repository both servers are given: small Python-backend models, written as text."""

from pathlib import Path

_IDENTITY = """
import triton_python_backend_utils as pb_utils

PAIRS = {pairs!r}


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensors = []
            for source, target in PAIRS:
                tensor = pb_utils.get_input_tensor_by_name(request, source)
                if tensor is not None:
                    tensors.append(pb_utils.Tensor(target, tensor.as_numpy()))
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

_REPEAT = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()
            for value in values:
                if value < 0:
                    error = pb_utils.TritonError("neg", pb_utils.TritonError.INVALID_ARG)
                    sender.send(pb_utils.InferenceResponse([], error))
                else:
                    tensor = pb_utils.Tensor("OUT", np.array([value], dtype=np.int32))
                    sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""

_FAILING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("boom", pb_utils.TritonError.UNAVAILABLE)
        return [pb_utils.InferenceResponse([], error) for _ in requests]
"""


def _config(
    name: str, batch: int, inputs: list[tuple[str, str, str, str]], outputs: list[tuple[str, str, str]], extra: str = ""
) -> str:
    lines = [f'name: "{name}"', 'backend: "python"', f"max_batch_size: {batch}"]
    for tensor, datatype, dims, more in inputs:
        lines.append(f'input {{ name: "{tensor}" data_type: TYPE_{datatype} dims: {dims} {more} }}')
    for tensor, datatype, dims in outputs:
        lines.append(f'output {{ name: "{tensor}" data_type: TYPE_{datatype} dims: {dims} }}')
    lines.append("instance_group { kind: KIND_CPU }")
    lines.append(extra)
    return "\n".join(lines) + "\n"


def _simple(name: str, datatype: str, dims: str, batch: int = 8) -> tuple[str, str]:
    config = _config(name, batch, [("IN", datatype, dims, "")], [("OUT", datatype, dims)])
    return config, _IDENTITY.format(pairs=[("IN", "OUT")])


def models() -> dict[str, tuple[str, str]]:
    """Model name -> (config.pbtxt, model.py)."""
    two = [("A", "INT32", "[ 2 ]", ""), ("B", "INT32", "[ 2 ]", "optional: true")]
    pairs = [("A", "OUT_A"), ("B", "OUT_B")]
    return {
        "ident": _simple("ident", "FP32", "[ 4 ]"),
        "ident_var": _simple("ident_var", "INT32", "[ -1 ]"),
        "ident_raw": _simple("ident_raw", "FP32", "[ -1 ]", batch=0),
        "ident_bytes": _simple("ident_bytes", "STRING", "[ -1 ]"),
        "ident_bool": _simple("ident_bool", "BOOL", "[ -1 ]"),
        "ident_fp16": _simple("ident_fp16", "FP16", "[ -1 ]"),
        "ident_uint8": _simple("ident_uint8", "UINT8", "[ -1 ]"),
        "ident_fp64": _simple("ident_fp64", "FP64", "[ -1 ]"),
        "text": (
            _config(
                "text",
                0,
                [("PROMPT", "STRING", "[ 1 ]", ""), ("LIMIT", "INT32", "[ 1 ]", "optional: true")],
                [("TEXT", "STRING", "[ 1 ]"), ("COUNT", "INT32", "[ 1 ]")],
            ),
            _IDENTITY.format(pairs=[("PROMPT", "TEXT"), ("LIMIT", "COUNT")]),
        ),
        "two": (
            _config("two", 4, two, [("OUT_A", "INT32", "[ 2 ]"), ("OUT_B", "INT32", "[ 2 ]")]),
            _IDENTITY.format(pairs=pairs),
        ),
        "repeat": (
            _config(
                "repeat",
                0,
                [("IN", "INT32", "[ -1 ]", "")],
                [("OUT", "INT32", "[ 1 ]")],
                "model_transaction_policy { decoupled: true }",
            ),
            _REPEAT,
        ),
        "failing": (_config("failing", 8, [("IN", "FP32", "[ 4 ]", "")], [("OUT", "FP32", "[ 4 ]")]), _FAILING),
    }


def write_repository(folder: Path) -> Path:
    """`folder` filled with every model, version 1 each."""
    for name, (config, code) in models().items():
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(config)
        (version / "model.py").write_text(code)
    return folder
