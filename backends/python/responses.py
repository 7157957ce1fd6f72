"""A custom model's responses as the server knows them."""

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceResponse, Parameter
from backends.api.tensor import Tensor
from backends.python.frame_codec import FrameError
from backends.python.frames import ErrorFrame, ParameterValue, ResponseFrame, TensorFrame
from backends.python.packing import Packer, Unpacker


def response_of(names: tuple[str, str], frame: ResponseFrame, unpacker: Unpacker) -> InferenceResponse:
    """Raises ServingError for tensors that cannot be."""
    tensors = [tensor_of(tensor, unpacker) for tensor in frame.tensors]
    return InferenceResponse(*names, tensors, parameters=parameters_of(frame.parameters))


def outcome_of(names: tuple[str, str], frame: ResponseFrame, unpacker: Unpacker) -> "InferenceResponse | ServingError":
    return response_of(names, frame, unpacker) if frame.error is None else error_of(frame.error)


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
