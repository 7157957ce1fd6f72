"""ModelInferRequest -> InferenceRequest and InferenceResponse -> ModelInferResponse (triton spec 2.2)."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from backends.api.checks import check_inputs, check_outputs
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest, InferenceResponse, Parameter, RequestedOutput
from backends.api.tensor import NUMPY_DTYPES, Tensor
from gateway import kserve_parameters
from gateway.classification import classify
from gateway.kserve_contents import OpenWindow
from gateway.kserve_json_answer import AnswerForm, Labels, selected
from gateway.kserve_tensors import check_num_elements, tensor_from_bytes, tensor_to_bytes
from gateway.shared_memory import Window

# typed contents: datatype -> the field that carries it
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# what Triton calls the contents of a field in its complaint about another datatype
_FIELD_DATATYPES = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
_NONE = kserve_parameters.NONE


def decode_infer(
    message: Any, config: ModelConfig, open_window: OpenWindow
) -> tuple[InferenceRequest, dict[str, Window]]:
    """The request in a ModelInferRequest, and its outputs that go to shared memory. Raises ServingError."""
    parameters = kserve_parameters.from_proto(message.parameters) if message.parameters else _NONE
    request = InferenceRequest(
        config.name,
        message.model_version,
        [],
        [],
        message.id,
        parameters.custom if parameters is not _NONE else {},
        parameters.sequence_id,
        parameters.sequence_start,
        parameters.sequence_end,
        parameters.priority,
        parameters.timeout,
    )
    check_inputs(message.inputs, config, request.label)
    windows: dict[str, Window] = {}
    outputs: dict[str, RequestedOutput] = {}  # one named twice is one
    for output in message.outputs:
        outputs[output.name] = _requested(output)
        if "shared_memory_region" in output.parameters:
            windows[output.name] = _window(output, open_window)
    check_outputs(outputs, config)
    request.outputs = list(outputs.values())
    request.inputs = _inputs(message, config, request.label, open_window)
    return request, windows


def answer_form(
    request: InferenceRequest, windows: Mapping[str, Window], labels: Labels, config: ModelConfig
) -> AnswerForm:
    outputs = {output.name: output for output in request.outputs}
    return AnswerForm(outputs, True, labels, config.max_batch_size > 0, windows)


def encode_infer(response: InferenceResponse, form: AnswerForm) -> Any:
    """A ModelInferResponse with raw contents, one entry an output; empty for one that went to shared memory."""
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    for name, value in response.parameters.items():
        set_parameter(message.parameters[name], value)
    for tensor in selected(response.outputs, form.outputs):
        wanted = form.outputs.get(tensor.name)
        if wanted is not None and wanted.classification:
            tensor = classify(tensor, wanted.classification, form.labels.get(tensor.name, ()), batched=form.batched)
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        window = form.windows.get(tensor.name)
        if window is None:
            message.raw_output_contents.append(tensor_to_bytes(tensor))
        else:
            window.write(tensor.name, tensor_to_bytes(tensor))
            message.raw_output_contents.append(b"")
    return message


def set_parameter(target: Any, value: Parameter) -> None:
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int):
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = value


def _requested(output: Any) -> RequestedOutput:
    if "classification" not in output.parameters:
        return RequestedOutput(output.name)
    parameter = output.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise ServingError(Code.INVALID, "invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param < 0:
        raise ServingError(Code.INVALID, "invalid value for 'classification' parameter, expected >= 0")
    if parameter.int64_param and "shared_memory_region" in output.parameters:
        raise ServingError(Code.INVALID, "Output can't set both 'shared_memory_region' and 'classification'")
    return RequestedOutput(output.name, parameter.int64_param)


def _inputs(message: Any, config: ModelConfig, label: str, open_window: OpenWindow) -> list[Tensor]:
    raw = message.raw_input_contents
    used = 0
    tensors = []
    for given in message.inputs:
        where = f"for input tensor '{given.name}' for model '{config.name}'"
        if given.HasField("contents") and raw:
            raise ServingError(
                Code.INVALID,
                f"contents field must not be specified when using raw_input_contents for '{given.name}' "
                f"for model '{config.name}'",
            )
        if "shared_memory_region" in given.parameters:
            data: Any = _window(given, open_window).read()
        elif used < len(raw):
            data = raw[used]
            used += 1
        elif given.HasField("contents"):
            tensors.append(_from_contents(given, config, label))
            continue
        else:
            raise ServingError(Code.INVALID, f"unable to find data {where} in request.")
        tensors.append(tensor_from_bytes(given.name, given.datatype, given.shape, data, label=label, model=config.name))
    if used != len(raw):
        raise ServingError(
            Code.INVALID,
            f"expected {used} entries in raw_input_contents for model '{config.name}', got {len(raw)}",
        )
    return tensors


def _from_contents(given: Any, config: ModelConfig, label: str) -> Tensor:
    field = _CONTENTS.get(given.datatype)
    for descriptor, _ in given.contents.ListFields():
        if descriptor.name != field:
            raise ServingError(
                Code.INVALID,
                f"unexpected explicit tensor data for input tensor '{given.name}' for model '{config.name}' of type "
                f"'{_FIELD_DATATYPES[descriptor.name]}', expected datatype '{given.datatype}'",
            )
    if field is None:
        raise ServingError(
            Code.INVALID,
            f"{given.datatype} data must be given in raw_input_contents for input tensor '{given.name}' "
            f"for model '{config.name}'",
        )
    values = list(getattr(given.contents, field))
    shape = tuple(given.shape)
    if given.datatype == "BYTES":
        where = f"inference input '{given.name}' for model '{config.name}'"
        check_num_elements(len(values), prod(shape), where, label)
        return Tensor(given.name, "BYTES", shape, values)
    return Tensor(given.name, given.datatype, shape, _to_array(given, values, config.name, label))


def _to_array(given: Any, values: list[Any], model: str, label: str) -> np.ndarray:
    dtype = NUMPY_DTYPES[given.datatype]
    try:
        array = np.array(values, dtype)
    except OverflowError:
        info = np.iinfo(dtype)
        raise ServingError(
            Code.INVALID,
            f"input tensor '{given.name}' for model '{model}' has a value outside {info.min} to {info.max}, "
            f"what {given.datatype} can hold",
        ) from None
    count = prod(given.shape)
    if array.size != count:
        raise ServingError(
            Code.INVALID,
            f"{label} input byte size mismatch for input '{given.name}' for model '{model}'. "
            f"Expected {count * dtype.itemsize}, got {array.nbytes}",
        )
    return array.reshape(given.shape)


def _window(tensor: Any, open_window: OpenWindow) -> Window:
    parameters = tensor.parameters
    if "shared_memory_byte_size" not in parameters:
        raise ServingError(
            Code.INVALID,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
            f"for tensor '{tensor.name}'",
        )
    values = {"shared_memory_offset": 0}
    for name in ("shared_memory_byte_size", "shared_memory_offset"):
        if name in parameters:
            kserve_parameters.check_kind(name, parameters[name].WhichOneof("parameter_choice"), ("int64_param",))
            values[name] = parameters[name].int64_param
    kind = parameters["shared_memory_region"].WhichOneof("parameter_choice")
    kserve_parameters.check_kind("shared_memory_region", kind, ("string_param",))
    region = parameters["shared_memory_region"].string_param
    return open_window(region, values["shared_memory_offset"], values["shared_memory_byte_size"])
