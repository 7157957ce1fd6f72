"""A pooling model in tensors: texts in, vectors or scores out."""

from collections.abc import Sequence

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.model_config import TensorSpec
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from backends.pooling.description import Description

TEXTS = {"embed": ("text_input",), "score": ("text_1", "text_2")}
"""The inputs of each task: texts, or the firsts and the seconds of pairs."""
RESULT = {"embed": "embedding", "score": "score"}
COUNTS = "num_input_tokens"


def input_specs(description: Description, *, batched: bool) -> tuple[TensorSpec, ...]:
    """With batching a text is a row, else any number of texts is one tensor."""
    dims = (1,) if batched else (-1,)
    return tuple(TensorSpec(name, "BYTES", dims) for name in TEXTS[description.task])


def output_specs(description: Description, *, batched: bool) -> tuple[TensorSpec, ...]:
    texts = () if batched else (-1,)
    result = TensorSpec(RESULT[description.task], "FP32", (*texts, description.dimension))
    return (result, TensorSpec(COUNTS, "UINT32", (1,) if batched else (-1,)))


def read_texts(request: InferenceRequest, name: str) -> list[str]:
    """The texts of an input. Raises ServingError(INVALID) for none, and for bytes that are not UTF-8."""
    tensor = next(tensor for tensor in request.inputs if tensor.name == name)
    values = tensor.as_numpy().ravel()
    if not len(values):
        raise ServingError(Code.INVALID, f"input '{name}': expected at least one text, got none", param=name)
    return [_text(bytes(value), name) for value in values]


def answer_tensors(
    description: Description, vectors: np.ndarray, counts: Sequence[int], *, batched: bool
) -> list[Tensor]:
    """`vectors` (texts, dimension); `counts` the tokens of each."""
    numbers = np.array(counts, np.uint32)
    return [
        Tensor.from_numpy(RESULT[description.task], vectors),
        Tensor.from_numpy(COUNTS, numbers[:, None] if batched else numbers),
    ]


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ServingError(
            Code.INVALID, f"input '{name}': expected UTF-8 text, got other bytes at {error.start}", param=name
        ) from error
