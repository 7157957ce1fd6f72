"""Tensors the server makes for a batch from the shapes of its requests: Triton's batch inputs and outputs.

Kinds and layouts: Triton's ModelConfig `BatchInput` and `BatchOutput`. Counts are a value a request;
shapes a row for each row of the batch.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.model_config import BatchInput, BatchOutput
from backends.api.request import InferenceRequest
from backends.api.tensor import NUMPY_DTYPES, Tensor

SCATTER = "BATCH_SCATTER_WITH_INPUT_SHAPE"


def _counts(sources: Sequence[Tensor]) -> list[int]:
    return [tensor.num_elements for tensor in sources]


def _item_shapes(sources: Sequence[Tensor]) -> np.ndarray:
    return np.array([tensor.shape[1:] for tensor in sources for _ in range(tensor.shape[0])], dtype=np.int64)


_KINDS: dict[str, Callable[[Sequence[Tensor]], np.ndarray]] = {
    "BATCH_ELEMENT_COUNT": lambda sources: np.array(_counts(sources)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda sources: np.array(list(accumulate(_counts(sources)))),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda sources: np.array(
        list(accumulate(_counts(sources), initial=0))
    ),
    # only its shape carries meaning
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda sources: np.zeros(max(_counts(sources))),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda sources: _item_shapes(sources).reshape(-1),
}
BATCH_INPUT_KINDS = frozenset(_KINDS)


def make_batch_input(rule: BatchInput, name: str, sources: Sequence[Tensor]) -> Tensor:
    """The tensor `name` for a batch whose requests brought `sources`."""
    array = _KINDS[rule.kind](sources).astype(NUMPY_DTYPES[rule.datatype])
    return Tensor(name, rule.datatype, array.shape, array)


def scatter(rule: BatchOutput, output: Tensor, requests: Sequence[InferenceRequest]) -> list[Tensor]:
    """`output`, one behind the other, cut into pieces of the shapes of each request's source input."""
    source = rule.source_inputs[0]
    shapes = [next(tensor.shape for tensor in request.inputs if tensor.name == source) for request in requests]
    ends = list(accumulate(prod(shape) for shape in shapes))
    if output.num_elements != ends[-1]:
        raise ServingError(
            Code.INTERNAL,
            f"output '{output.name}' has {output.num_elements} elements, expected {ends[-1]}: as many as input '{source}'",
            reason="wrong_output",
        )
    flat = output.data if isinstance(output.data, list) else output.data.reshape(-1)
    pieces = []
    for shape, end in zip(shapes, ends, strict=True):
        piece = flat[end - prod(shape) : end]
        data = piece if isinstance(piece, list) else piece.reshape(shape)
        pieces.append(Tensor(output.name, output.datatype, shape, data))
    return pieces
