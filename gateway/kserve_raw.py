"""A raw binary request: the whole body is the contents of the model's one input, a batch of one (triton spec 1.5)."""

from math import prod

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest
from backends.api.tensor import NUMPY_DTYPES
from gateway.kserve_tensors import Buffer, tensor_from_bytes


def raw_request(body: Buffer, config: ModelConfig, version: str) -> InferenceRequest:
    """The request in `body`; the input's one variable dimension takes what fits.

    Raises ServingError(INVALID) when the model's input can not be deduced or does not fit the body.
    """
    request = InferenceRequest(config.name, version, [])
    if len(config.inputs) != 1:
        raise ServingError(
            Code.INVALID,
            f"{request.label} Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(config.inputs)} inputs in '{config.name}' model configuration",
        )
    spec = config.inputs[0]
    shape = list(spec.dims)
    data: Buffer = body
    if spec.datatype == "BYTES":
        if shape != [1]:
            raise ServingError(
                Code.INVALID,
                f"{request.label} For BYTE datatype raw input '{spec.name}', the model must have input shape [1]",
            )
        data = len(body).to_bytes(4, "little") + bytes(body)
    elif shape.count(-1) > 1:
        raise ServingError(
            Code.INVALID,
            f"{request.label} The shape of the raw input '{spec.name}' can not be deduced because there are more "
            "than one variable-sized dimension",
        )
    elif -1 in shape:
        shape = _deduced(shape, spec.datatype, len(body), request.label, config.name)
    if config.max_batch_size > 0:
        shape = [1, *shape]
    name = "raw_input" if spec.datatype != "BYTES" else spec.name
    tensor = tensor_from_bytes(name, spec.datatype, shape, data, label=request.label, model=config.name)
    tensor.name = spec.name
    request.inputs = [tensor]
    return request


def _deduced(shape: list[int], datatype: str, size: int, label: str, model: str) -> list[int]:
    unit = NUMPY_DTYPES[datatype].itemsize * prod(dim for dim in shape if dim != -1)
    if size % unit:
        raise ServingError(
            Code.INVALID,
            f"{label} input byte size mismatch for input 'raw_input' for model '{model}'. "
            f"Expected {size - size % unit}, got {size}",
        )
    return [size // unit if dim == -1 else dim for dim in shape]
