"""A custom model's responses as the server knows them."""

from collections.abc import Sequence

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceResponse, Parameter
from backends.api.tensor import Tensor
from backends.python.frame_codec import FrameError
from backends.python.frames import ErrorFrame, ParameterValue, ResponseFrame, TensorFrame
from backends.python.packing import Packer, Unpacker


def outcome_of(
    names: tuple[str, str], outputs: Sequence[str], frame: ResponseFrame, unpacker: Unpacker
) -> "InferenceResponse | ServingError":
    """Of the tensors only `outputs`, those in the model's configuration; all where it names none.

    Raises ServingError for tensors that cannot be.
    """
    if frame.error is not None:
        return error_of(frame.error)
    tensors = [tensor_of(tensor, unpacker) for tensor in frame.tensors]
    kept = [tensor for tensor in tensors if tensor.name in outputs] if outputs else tensors
    return InferenceResponse(*names, kept, parameters=parameters_of(frame.parameters))


def error_of(frame: ErrorFrame) -> ServingError:
    try:
        code = Code[frame.code]
    except KeyError:
        code = Code.INTERNAL
    return ServingError(code, frame.message)


def tensor_of(frame: TensorFrame, unpacker: Unpacker) -> Tensor:
    try:
        return Tensor(frame.name, frame.datatype, tuple(frame.shape), unpacker.take(frame))
    except FrameError as error:
        raise ServingError(Code.INTERNAL, str(error)) from None


def parameters_of(values: dict[str, ParameterValue]) -> dict[str, Parameter]:
    return {name: value for name, value in values.items() if value is not None}


def pack_response(response: InferenceResponse, packer: Packer) -> ResponseFrame:
    tensors = [packer.pack(t.name, t.datatype, t.shape, t.data) for t in response.outputs]
    return ResponseFrame(tensors, dict(response.parameters), None)
