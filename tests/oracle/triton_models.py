"""The model repository both servers are given: small Python-backend models, written as text. One of them is broken."""

from pathlib import Path

MORE_KINDS = ("INT8", "INT16", "INT64", "UINT16", "UINT32", "UINT64")
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

_RAISING = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("a bug of the model")
"""

_BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("cannot start")

    def execute(self, requests):
        return []
"""

_SLOW = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            time.sleep(float(tensor.as_numpy().ravel()[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]))
        return responses
"""
# sends so many answers, or for 0 whether the request before was cancelled
_WATCHED = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.was_cancelled = False

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if count == 0:
                self.send(sender, self.was_cancelled)
            for turn in range(count):
                self.was_cancelled = sender.is_cancelled()
                if self.was_cancelled:
                    break
                self.send(sender, turn)
                time.sleep(0.02)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def send(self, sender, value):
        tensor = pb_utils.Tensor("OUT", np.array([value], dtype=np.int32))
        sender.send(pb_utils.InferenceResponse([tensor]))
"""

_PARAMETERS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            told = json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([told], dtype=object))]))
        return responses
"""
_QUEUE = """dynamic_batching { preferred_batch_size: [ 1 ]
  default_queue_policy { %s } }"""
_DECOUPLED = "model_transaction_policy { decoupled: true }"
_ENSEMBLE = """name: "%s" platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling { step { model_name: "%s" model_version: -1
  input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } }
"""
_SEQUENCE = """sequence_batching { max_sequence_idle_microseconds: 60000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }"""


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


def _simple(
    name: str, datatype: str, dims: str, batch: int = 8, extra: str = "", code: str = _IDENTITY
) -> tuple[str, str]:
    config = _config(name, batch, [("IN", datatype, dims, "")], [("OUT", datatype, dims)], extra)
    return config, code.replace("{pairs!r}", repr([("IN", "OUT")]))


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
        "ident_bf16": _simple("ident_bf16", "BF16", "[ -1 ]"),
        "ident_uint8": _simple("ident_uint8", "UINT8", "[ -1 ]"),
        "ident_fp64": _simple("ident_fp64", "FP64", "[ -1 ]"),
        **{f"ident_{kind.lower()}": _simple(f"ident_{kind.lower()}", kind, "[ -1 ]") for kind in MORE_KINDS},
        "raising": _simple("raising", "FP32", "[ 4 ]", code=_RAISING),
        "broken": _simple("broken", "FP32", "[ 4 ]", code=_BROKEN),
        "slow": _simple("slow", "FP32", "[ 1 ]", 1, code=_SLOW),
        "full": _simple("full", "FP32", "[ 1 ]", 1, _QUEUE % "max_queue_size: 1", _SLOW),
        "late": _simple("late", "FP32", "[ 1 ]", 1, _QUEUE % "default_timeout_microseconds: 100000", _SLOW),
        "seq": _simple("seq", "FP32", "[ 4 ]", extra=_SEQUENCE),
        "chain": (_ENSEMBLE % ("chain", "ident"), ""),
        "chain_failing": (_ENSEMBLE % ("chain_failing", "failing"), ""),
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
            _config("repeat", 0, [("IN", "INT32", "[ -1 ]", "")], [("OUT", "INT32", "[ 1 ]")], _DECOUPLED),
            _REPEAT,
        ),
        "watched": (
            _config("watched", 0, [("IN", "INT32", "[ 1 ]", "")], [("OUT", "INT32", "[ 1 ]")], _DECOUPLED),
            _WATCHED,
        ),
        "parameters": (
            _config("parameters", 0, [("IN", "FP32", "[ 1 ]", "")], [("OUT", "STRING", "[ 1 ]")]),
            _PARAMETERS,
        ),
        "misconfigured": ('name: "misconfigured" backend: "python" no_such_field: 1\n', _BROKEN),
        "failing": (_config("failing", 8, [("IN", "FP32", "[ 4 ]", "")], [("OUT", "FP32", "[ 4 ]")]), _FAILING),
    }


def write_repository(folder: Path, *names: str) -> Path:
    """`folder` filled with the models of these names, else with every one, version 1 each."""
    known = models()
    for name in names or known:
        config, code = known[name]
        version = folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        (folder / name / "config.pbtxt").write_text(config)
        if code:
            (version / "model.py").write_text(code)
    return folder
