"""Bytes of an `/infer` body -> InferenceRequest: JSON, JSON with binary tensor data, raw binary (triton spec 1.5).

`decode` is one strict pass: the shape of the document is checked by its decoder, number lists become arrays in
one conversion, binary data are views of the body. Only when it refuses does `kserve_json_faults` look again, for
the words Triton would use.
"""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from backends.api.checks import check_inputs, check_outputs
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest, Parameter, RequestedOutput
from backends.api.tensor import DATATYPES
from gateway import kserve_parameters
from gateway.kserve_contents import NO_DATA, Contents, OpenWindow, region_window
from gateway.kserve_json_faults import explain
from gateway.kserve_numbers import wrong_type
from gateway.kserve_raw import raw_request
from gateway.shared_memory import Window

_Dimension = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class WireInput(msgspec.Struct):
    name: str
    shape: list[_Dimension]
    datatype: str
    data: msgspec.Raw = NO_DATA
    parameters: dict[str, Any] = {}


class WireOutput(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class WireRequest(msgspec.Struct):
    inputs: list[WireInput]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[WireOutput] = []


_DECODER = msgspec.json.Decoder(WireRequest)


@dataclass(slots=True)
class Decoded:
    """A request, and the form its answer is wanted in.

    `binary` holds for outputs that do not say themselves; `windows` are the outputs that go to shared memory.
    """

    request: InferenceRequest
    binary: bool
    windows: dict[str, Window] = field(default_factory=dict)


def decode(
    body: bytes, header_length: int | None, config: ModelConfig, version: str, open_window: OpenWindow
) -> Decoded:
    """The request in `body` for the model of `config`; `version` is "" where the version policy chooses.

    `header_length` is the number in Inference-Header-Content-Length, None without that header. Raises
    ServingError(INVALID) for what the protocol or the model's configuration does not allow.
    """
    if header_length == 0:
        return Decoded(raw_request(body, config, version), binary=True)
    if header_length is None:
        text, blob = body, memoryview(b"")
    else:
        if not 0 < header_length <= len(body):
            raise ServingError(
                Code.INVALID,
                f"inference header size should be in range (0, {len(body)}), got: {header_length}",
            )
        text, blob = body[:header_length], memoryview(body)[header_length:]
    wire, lists = _parse(text)
    parameters = kserve_parameters.from_json(wire.parameters) if wire.parameters else kserve_parameters.NONE
    request = InferenceRequest(
        config.name,
        version,
        [],
        # one named twice is one
        list({output.name: _requested(output) for output in wire.outputs}.values()) if wire.outputs else [],
        wire.id,
        parameters.custom if wire.parameters else {},
        parameters.sequence_id,
        parameters.sequence_start,
        parameters.sequence_end,
        parameters.priority,
        parameters.timeout,
    )
    for given in wire.inputs:
        if given.datatype not in DATATYPES:
            raise ServingError(Code.INVALID, f"invalid datatype for input {given.name}")
    check_inputs(wire.inputs, config, request.label)
    check_outputs((output.name for output in wire.outputs), config)
    reader = Contents(blob, lists, request.label, config.name, open_window)
    request.inputs = [reader.tensor(index, given) for index, given in enumerate(wire.inputs)]
    reader.check_used_up()
    windows = {
        output.name: open_window(*region_window(output.parameters))
        for output in wire.outputs
        if "shared_memory_region" in output.parameters
    }
    return Decoded(request, parameters.binary_data_output, windows)


def _parse(text: bytes) -> tuple[WireRequest, dict[int, Any]]:
    """The document, and the `data` of inputs (by index) that only a lenient reader could take."""
    try:
        return _DECODER.decode(text), {}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if not isinstance(error, msgspec.ValidationError) and (b"NaN" in text or b"Infinity" in text):
            return _parse_with_nan(text, error)
        raise explain(text, error) from None


def _parse_with_nan(text: bytes, error: Exception) -> tuple[WireRequest, dict[int, Any]]:
    """JSON with the words NaN, Infinity, -Infinity, which Triton takes and its clients send."""
    try:
        document = json.loads(text)
        lists = {index: item.pop("data") for index, item in enumerate(document["inputs"]) if "data" in item}
        return msgspec.convert(document, WireRequest), lists
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise explain(text, error) from None


def _requested(output: WireOutput) -> RequestedOutput:
    parameters: dict[str, Parameter] = output.parameters
    if not parameters:
        return RequestedOutput(output.name)
    classification = parameters.get("classification", 0)
    if isinstance(classification, bool) or not isinstance(classification, int) or classification < 0:
        raise ServingError(
            Code.INVALID,
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        )
    if not isinstance(parameters.get("binary_data", False), bool):
        raise wrong_type("binary_data", "non-boolean as boolean")
    if "shared_memory_region" in parameters:
        for name in ("binary_data", "classification"):
            if parameters.get(name):
                raise ServingError(Code.INVALID, f"Output can't set both 'shared_memory_region' and '{name}'")
    return RequestedOutput(output.name, classification, parameters)
