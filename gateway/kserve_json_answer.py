"""InferenceResponse -> body of an `/infer` answer: JSON alone, or JSON and binary tensor data (triton spec 1.5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceResponse, RequestedOutput
from backends.api.tensor import Tensor
from gateway.classification import classify
from gateway.kserve_numbers import numbers_as_json
from gateway.kserve_tensors import tensor_to_bytes
from gateway.shared_memory import Window

Labels = Mapping[str, Sequence[str]]
"""Output name -> the names of its classes."""


@dataclass(slots=True)
class AnswerForm:
    """How a request wants its answers: per output in `outputs`, `binary` for those that do not say.

    Outputs in `windows` are written to shared memory; their entries then carry no contents.
    """

    outputs: dict[str, RequestedOutput]
    binary: bool
    labels: Labels
    batched: bool
    windows: Mapping[str, Window]


@dataclass(slots=True)
class Answer:
    """`json_length` is the length of the JSON before binary data, None when the body is JSON alone."""

    body: bytes
    json_length: int | None


def encode(response: InferenceResponse, form: AnswerForm) -> Answer:
    """The body of `response`. Raises ServingError(INVALID) for contents that JSON cannot carry."""
    blobs: list[bytes] = []
    head: dict[str, Any] = {"id": response.id} if response.id else {}
    head["model_name"] = response.model
    head["model_version"] = response.version
    if response.parameters:
        head["parameters"] = response.parameters
    head["outputs"] = [_output(tensor, form, blobs) for tensor in selected(response.outputs, form.outputs)]
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(b"".join([text, *blobs]), len(text)) if blobs else Answer(text, None)


def selected(tensors: list[Tensor], wanted: Mapping[str, RequestedOutput]) -> list[Tensor]:
    """The tensors asked for; all when none is."""
    return [tensor for tensor in tensors if tensor.name in wanted] if wanted else tensors


def _output(tensor: Tensor, form: AnswerForm, blobs: list[bytes]) -> dict[str, Any]:
    wanted = form.outputs.get(tensor.name)
    if wanted is not None and wanted.classification:
        tensor = classify(tensor, wanted.classification, form.labels.get(tensor.name, ()), batched=form.batched)
    entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    window = form.windows.get(tensor.name)
    if window is not None:
        window.write(tensor.name, tensor_to_bytes(tensor))
    elif form.binary if wanted is None else wanted.parameters.get("binary_data", form.binary):
        blobs.append(tensor_to_bytes(tensor))
        entry["parameters"] = {"binary_data_size": len(blobs[-1])}
    else:
        entry["data"] = json_data(tensor)
    return entry


def json_data(tensor: Tensor) -> Any:
    """A flat list, as orjson takes it. Raises ServingError(INVALID) for FP16, BF16 and bytes that are not text."""
    if tensor.datatype in ("FP16", "BF16"):
        raise ServingError(
            Code.INVALID,
            f"sending {tensor.datatype} data via JSON is not supported. "
            f"Please use the binary data format for output {tensor.name}",
        )
    if isinstance(tensor.data, np.ndarray):
        return orjson.Fragment(numbers_as_json(tensor))
    try:
        return [element.decode() for element in tensor.data]
    except UnicodeDecodeError:
        raise ServingError(
            Code.INVALID,
            f"output '{tensor.name}' has elements that are not UTF-8 text, which JSON can not carry: "
            "ask for it as binary data",
        ) from None
