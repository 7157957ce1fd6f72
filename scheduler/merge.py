"""How requests lie in a batch: joined along the first dimension, and their rows taken apart again.

A tensor inside the model has the shape of its `reshape`, outside that of its `dims`; both stand behind the
batch dimension of a model with max_batch_size > 0. Ragged inputs are laid one behind the other, as
one dimension of elements, and the model is told the shapes by its batch inputs (see `ragged`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from scheduler.ragged import make_batch_input, scatter


@dataclass(frozen=True, slots=True)
class Part:
    """The rows [start, stop) of a batch belong to `request`."""

    request: InferenceRequest
    start: int
    stop: int


class BatchLayout:
    """Merges and splits the tensors of one model's requests."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._batching = config.max_batch_size > 0
        self._inputs = {spec.name: spec for spec in config.inputs}
        self._outputs = {spec.name: spec for spec in config.outputs}
        self._ragged = frozenset(spec.name for spec in config.inputs if spec.allow_ragged_batch and self._batching)
        self._output_names = list(self._outputs)
        self._scattered = {name: rule for rule in config.batch_outputs for name in rule.target_names}
        self._is_plain_in = not (
            self._ragged or config.batch_inputs or any(spec.reshape is not None for spec in config.inputs)
        )
        self._is_plain_out = not (self._scattered or any(spec.reshape is not None for spec in config.outputs))
        self._is_uniform = all(-1 not in spec.dims and not spec.optional for spec in config.inputs)

    def rows_of(self, request: InferenceRequest) -> int:
        """The rows `request` brings: 1 for a model without batching, and for a request without inputs."""
        if not self._batching or not request.inputs:
            return 1
        shape = request.inputs[0].shape
        return shape[0] if shape else 1

    def key_of(self, request: InferenceRequest) -> Hashable:
        """What must be equal for requests to share a batch: which inputs there are, and their row shapes."""
        if self._is_uniform or not self._batching:
            return None
        return frozenset(
            (tensor.name, () if tensor.name in self._ragged else tensor.shape[1:]) for tensor in request.inputs
        )

    def parts_of(self, requests: Sequence[InferenceRequest]) -> list[Part]:
        parts = []
        start = 0
        for request in requests:
            stop = start + self.rows_of(request)
            parts.append(Part(request, start, stop))
            start = stop
        return parts

    def merge(self, requests: Sequence[InferenceRequest]) -> dict[str, Tensor]:
        """The model's inputs for a batch. A lone request's tensors are passed on as they are, without a copy."""
        if len(requests) == 1 and self._is_plain_in:
            return {tensor.name: tensor for tensor in requests[0].inputs}
        columns: dict[str, list[Tensor]] = {tensor.name: [] for tensor in requests[0].inputs}
        for request in requests:
            for tensor in request.inputs:
                columns[tensor.name].append(tensor)
        merged = {name: self._join(name, tensors) for name, tensors in columns.items()}
        for rule in self._config.batch_inputs:
            for name in rule.target_names:
                merged[name] = make_batch_input(rule, name, columns[rule.source_inputs[0]])
        return merged

    def split(self, outputs: dict[str, Tensor], parts: Sequence[Part]) -> list[list[Tensor]]:
        """Each part's own outputs: those it asked for, in its order, or all in the model's.

        Raises ServingError(INTERNAL) when an output has another number of rows than the batch, or one that
        somebody asked for by name is missing.
        """
        rows = parts[-1].stop
        columns = {name: self._cut(tensor, parts, rows) for name, tensor in outputs.items()}
        order = [name for name in self._outputs if name in columns] or list(columns)
        return [self._choose(columns, part.request, index, order) for index, part in enumerate(parts)]

    def outputs_of(self, request: InferenceRequest, outputs: list[Tensor]) -> list[Tensor]:
        """What `split` gives for a request that was run alone."""
        rows = self.rows_of(request)
        is_all = not request.outputs and [tensor.name for tensor in outputs] == self._output_names
        has_rows = not self._batching or all(tensor.shape and tensor.shape[0] == rows for tensor in outputs)
        if is_all and has_rows and self._is_plain_out:
            return outputs
        return self.split({tensor.name: tensor for tensor in outputs}, [Part(request, 0, rows)])[0]

    def _choose(
        self, columns: dict[str, list[Tensor]], request: InferenceRequest, index: int, order: list[str]
    ) -> list[Tensor]:
        if not request.outputs:
            return [columns[name][index] for name in order]
        chosen = []
        for output in request.outputs:
            column = columns.get(output.name)
            if column is None:
                raise self._fault(f"the model gave no output '{output.name}'")
            chosen.append(column[index])
        return chosen

    def _join(self, name: str, tensors: list[Tensor]) -> Tensor:
        spec = self._inputs.get(name)
        if name in self._ragged:
            return _concatenate(tensors, (sum(tensor.num_elements for tensor in tensors),), flat=True)
        first = tensors[0]
        if not self._batching:
            return first if spec is None else _reshaped(first, _inner_shape(spec, first.shape))
        shape = (sum(tensor.shape[0] for tensor in tensors), *first.shape[1:])
        if spec is not None and spec.reshape is not None:
            return _reshaped(_concatenate(tensors, shape), (shape[0], *_inner_shape(spec, shape[1:])))
        return _concatenate(tensors, shape)

    def _cut(self, tensor: Tensor, parts: Sequence[Part], rows: int) -> list[Tensor]:
        spec = self._outputs.get(tensor.name)
        if not self._batching:
            return [tensor if spec is None else _reshaped(tensor, _outer_shape(spec, tensor.shape))]
        rule = self._scattered.get(tensor.name)
        if rule is not None:
            return scatter(rule, tensor, [part.request for part in parts])
        if not tensor.shape or tensor.shape[0] != rows:
            raise self._fault(
                f"output '{tensor.name}' has shape {list(tensor.shape)}, expected {rows} rows for a batch of {rows}"
            )
        if spec is not None and spec.reshape is not None:
            tensor = _reshaped(tensor, (rows, *_outer_shape(spec, tensor.shape[1:])))
        if len(parts) == 1:
            return [tensor]
        return [_rows(tensor, part.start, part.stop) for part in parts]

    def _fault(self, text: str) -> ServingError:
        return ServingError(Code.INTERNAL, f"model '{self._config.name}': {text}", reason="wrong_output")


def _concatenate(tensors: list[Tensor], shape: tuple[int, ...], *, flat: bool = False) -> Tensor:
    first = tensors[0]
    if isinstance(first.data, list):
        data: np.ndarray | list[bytes] = [item for tensor in tensors for item in tensor.data]
    elif flat:
        data = np.concatenate([tensor.as_numpy().reshape(-1) for tensor in tensors])
    elif len(tensors) == 1:
        data = first.data
    else:
        data = np.concatenate([tensor.as_numpy() for tensor in tensors])
    return Tensor(first.name, first.datatype, shape, data)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    shape = (stop - start, *tensor.shape[1:])
    if isinstance(tensor.data, list):
        width = prod(shape[1:])
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data[start * width : stop * width])
    return Tensor(tensor.name, tensor.datatype, shape, tensor.data[start:stop])


def _reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if shape == tensor.shape:
        return tensor
    if prod(shape) != tensor.num_elements:
        raise ServingError(
            Code.INTERNAL, f"tensor '{tensor.name}' of shape {list(tensor.shape)} cannot take shape {list(shape)}"
        )
    data = tensor.data if isinstance(tensor.data, list) else tensor.data.reshape(shape)
    return Tensor(tensor.name, tensor.datatype, shape, data)


def _inner_shape(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The model's shape for a client's `shape`, both without the batch dimension."""
    return shape if spec.reshape is None else _fill(spec.reshape, spec.dims, shape)


def _outer_shape(spec: TensorSpec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The client's shape for a model's `shape`, both without the batch dimension."""
    return shape if spec.reshape is None else _fill(spec.dims, spec.reshape, shape)


def _fill(target: tuple[int, ...], source: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`target` with its variable dimensions taken, in order, from where `source` has its own in `shape`."""
    sizes = iter([size for dim, size in zip(source, shape, strict=False) if dim == -1])
    return tuple(next(sizes, -1) if dim == -1 else dim for dim in target)
