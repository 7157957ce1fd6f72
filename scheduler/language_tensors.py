"""A language model in tensors: the inputs and outputs of Triton's vLLM backend (triton spec 8.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.model_config import TensorSpec
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor

DETAILS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
"""What an answer carries beside its text where the request asks, by input `return_<name>` or as a requested output."""
_FLAGS = ("stream", "exclude_input_in_output", *(f"return_{name}" for name in DETAILS))

INPUTS = (
    TensorSpec("text_input", "BYTES", (1,)),
    TensorSpec("stream", "BOOL", (1,), optional=True),
    TensorSpec("sampling_parameters", "BYTES", (1,), optional=True),
    *(TensorSpec(name, "BOOL", (1,), optional=True) for name in _FLAGS[1:]),
)
OUTPUTS = (
    TensorSpec("text_output", "BYTES", (-1,)),
    TensorSpec("finish_reason", "BYTES", (-1,)),
    TensorSpec("cumulative_logprob", "FP32", (-1,)),
    TensorSpec("logprobs", "BYTES", (-1,)),
    TensorSpec("num_input_tokens", "UINT32", (1,)),
    TensorSpec("num_output_tokens", "UINT32", (-1,)),
)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What the inputs say. `sampling` is the JSON text of `sampling_parameters`, None where there is none.

    `prepend` repeats the prompt before the answer, which without `stream` is the default, as in vLLM's backend.
    """

    text: str
    stream: bool
    prepend: bool
    sampling: bytes | None
    details: frozenset[str]


@dataclass(slots=True)
class TextPart:
    """A piece of one choice, or all of it. `cumulative_logprob` is of the choice so far; `logprobs` is JSON."""

    text: str = ""
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0
    logprobs: bytes = b"null"
    num_tokens: int = 0


def read_request(request: InferenceRequest) -> TextRequest:
    """Raises ServingError(INVALID) for a text that is not UTF-8, and for a streamed answer that repeats its prompt."""
    given = {tensor.name: tensor for tensor in request.inputs}
    flags = {name: bool(given[name].as_numpy().flat[0]) for name in _FLAGS if name in given}
    stream = flags.get("stream", False)
    prepend = not flags.get("exclude_input_in_output", stream)
    if prepend and stream:
        raise ServingError(
            Code.INVALID,
            "'exclude_input_in_output' is false: expected true, or no such input, with 'stream' true",
            param="exclude_input_in_output",
        )
    named = {output.name for output in request.outputs}
    sampling = given.get("sampling_parameters")
    return TextRequest(
        text=_text(given["text_input"]),
        stream=stream,
        prepend=prepend,
        sampling=None if sampling is None else bytes(sampling.as_numpy().flat[0]),
        details=frozenset(name for name in DETAILS if flags.get(f"return_{name}") or name in named),
    )


def answer_tensors(asked: TextRequest, parts: Sequence[TextPart], num_input_tokens: int) -> list[Tensor]:
    """One element a choice, in the order of the model's outputs. No finish reason yet is "None", as in vLLM's backend."""
    counts = np.array([part.num_tokens for part in parts], np.uint32)
    columns = {
        "finish_reason": lambda name: _texts(name, [str(part.finish_reason).encode() for part in parts]),
        "cumulative_logprob": lambda name: Tensor.from_numpy(
            name, np.array([part.cumulative_logprob for part in parts], np.float32)
        ),
        "logprobs": lambda name: _texts(name, [part.logprobs for part in parts]),
        "num_input_tokens": lambda name: Tensor.from_numpy(name, np.array([num_input_tokens], np.uint32)),
        "num_output_tokens": lambda name: Tensor.from_numpy(name, counts),
    }
    prompt = asked.text if asked.prepend else ""
    text = _texts("text_output", [(prompt + part.text).encode() for part in parts])
    return [text, *(columns[name](name) for name in DETAILS if name in asked.details)]


def _text(tensor: Tensor) -> str:
    try:
        return bytes(tensor.as_numpy().flat[0]).decode()
    except UnicodeDecodeError as error:
        raise ServingError(
            Code.INVALID, f"input '{tensor.name}': expected UTF-8 text, got other bytes at {error.start}"
        ) from error


def _texts(name: str, values: list[bytes]) -> Tensor:
    return Tensor(name, "BYTES", (len(values),), values)
