"""The generate extension: one flat JSON object in, model outputs as one flat JSON object out (triton spec 1.6)."""

from math import prod
from typing import Any

import numpy as np
import orjson

from backends.api.checks import check_inputs
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.tensor import Tensor
from gateway import kserve_parameters
from gateway.kserve_json_answer import json_data
from gateway.kserve_json_faults import parse_document
from gateway.kserve_numbers import flatten, numbers_from_list, wrong_type

ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, "
    "use generate stream for model that generates various number of responses"
)


def decode_generate(body: bytes, config: ModelConfig, version: str) -> InferenceRequest:
    """Keys named like an input become tensors, the rest request parameters; `parameters` is flattened into them.

    Raises ServingError(INVALID).
    """
    fields = _fields(body)
    request_id = fields.pop("id", "")
    if not isinstance(request_id, str):
        raise wrong_type("id", "non-string as string")
    nested = fields.pop("parameters", {}) if config.input("parameters") is None else {}
    if not isinstance(nested, dict):
        raise wrong_type("parameters", "non-object as object")
    fields.update(nested)
    values = {spec: fields.pop(spec.name) for spec in config.inputs if fields.get(spec.name) is not None}
    parameters = kserve_parameters.from_json({name: value for name, value in fields.items() if value is not None})
    request = InferenceRequest(
        config.name,
        version,
        [_tensor(spec, value, config) for spec, value in values.items()],
        id=request_id,
        parameters=parameters.custom,
        sequence_id=parameters.sequence_id,
        sequence_start=parameters.sequence_start,
        sequence_end=parameters.sequence_end,
        priority=parameters.priority,
        timeout_us=parameters.timeout,
    )
    check_inputs(request.inputs, config, request.label)
    return request


def encode_generate(response: InferenceResponse) -> bytes:
    """Outputs first, one-element ones as scalars; then `id`, model, version and the response's parameters."""
    document: dict[str, Any] = {}
    for tensor in response.outputs:
        if isinstance(tensor.data, np.ndarray) and tensor.num_elements == 1 and tensor.datatype not in ("FP16", "BF16"):
            text = bytes(orjson.dumps(json_data(tensor)))
            document[tensor.name] = orjson.Fragment(text[1:-1])
        elif tensor.num_elements == 1 and tensor.datatype == "BYTES":
            (document[tensor.name],) = json_data(tensor)
        else:
            document[tensor.name] = json_data(tensor)
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model
    document["model_version"] = response.version
    document.update(response.parameters)
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _fields(body: bytes) -> dict[str, Any]:
    document = parse_document(body)
    if not isinstance(document, dict):
        raise ServingError(Code.INVALID, "failed to parse the request JSON buffer: expected an object")
    return document


def _tensor(spec: TensorSpec, value: Any, config: ModelConfig) -> Tensor:
    flat = flatten(value) if isinstance(value, list) else [value]
    shape = _shape(spec, len(flat), config)
    if spec.datatype == "BYTES":
        if not set(map(type, flat)) <= {str}:
            raise ServingError(
                Code.INVALID,
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
                param=spec.name,
            )
        return Tensor(spec.name, "BYTES", shape, [text.encode() for text in flat])
    if spec.datatype in ("FP16", "BF16"):
        raise ServingError(
            Code.INVALID,
            f"receiving {spec.datatype} data via JSON is not supported. "
            f"Please use the binary data format for input {spec.name}",
        )
    return Tensor(spec.name, spec.datatype, shape, numbers_from_list(flat, spec.datatype, spec.name).reshape(shape))


def _shape(spec: TensorSpec, count: int, config: ModelConfig) -> tuple[int, ...]:
    """The config's shape with its variable dimensions chosen to hold `count` elements: the innermost takes them."""
    dims = [1, *spec.dims] if config.max_batch_size > 0 else list(spec.dims)
    fixed = prod(dim for dim in dims if dim != -1)
    variable = [position for position, dim in enumerate(dims) if dim == -1]
    if (not variable and fixed != count) or (variable and (not fixed or count % fixed)):
        wanted = f"{fixed}" if not variable else f"a multiple of {fixed}"
        raise ServingError(
            Code.INVALID,
            f"input '{spec.name}' of model '{config.name}': expected {wanted} values, got {count}",
            param=spec.name,
        )
    for position in variable:
        dims[position] = count // fixed if position == variable[-1] else 1
    return tuple(dims)
