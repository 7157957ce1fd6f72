"""The inputs that a sequence batcher adds to a request: its place in the sequence, its id, its slot."""

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, SequenceControl
from backends.api.request import InferenceRequest
from backends.api.tensor import NUMPY_DTYPES, Tensor

SLOT = "sequence slot"
"""An input no model has: INT64, twice the number of the request's slot, plus one at a START. Of `SlotBackend`."""
_INT64_WRAP = 1 << 64


class SequenceControls:
    """Makes the control inputs of one model's requests. Shape [1], with batching [1, 1]."""

    def __init__(self, config: ModelConfig, *, with_slots: bool) -> None:
        assert config.sequence_batching is not None
        self._model = config.name
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)
        controls = config.sequence_batching.controls
        self._flags = {
            control.kind: [_flag(control, value, self._shape) for value in control.false_true]
            for control in controls
            if control.false_true is not None
        }
        self._id = next((control for control in controls if control.kind == "CORRID"), None)
        self._names = {control.name for control in controls} | {SLOT}
        self._with_slots = with_slots

    def check(self, request: InferenceRequest) -> None:
        """Raises ServingError(INVALID) for an id that the model's CORRID input cannot hold."""
        control = self._id
        if control is None or control.datatype == "BYTES":
            return
        if isinstance(request.sequence_id, str):
            raise self._wrong_id(request, control, "a string")
        if control.datatype in ("INT32", "UINT32"):
            limits = np.iinfo(NUMPY_DTYPES[control.datatype])
            if not limits.min <= request.sequence_id <= limits.max:
                raise self._wrong_id(request, control, "out of its range")

    def tensors(self, request: InferenceRequest, slot: int) -> list[Tensor]:
        states = {"START": request.sequence_start, "END": request.sequence_end, "READY": True}
        tensors = [pair[states[kind]] for kind, pair in self._flags.items()]
        if self._id is not None:
            tensors.append(self._id_tensor(self._id, request.sequence_id))
        if self._with_slots:
            tensors.append(_tensor(SLOT, "INT64", 2 * slot + request.sequence_start, self._shape))
        return tensors

    def without(self, inputs: list[Tensor]) -> list[Tensor]:
        """`inputs` as the client sent them."""
        return [tensor for tensor in inputs if tensor.name not in self._names]

    def empty(self) -> list[Tensor]:
        """The controls of a slot without a request."""
        tensors = [pair[False] for pair in self._flags.values()]
        if self._id is not None:
            value = "" if self._id.datatype == "BYTES" else 0
            tensors.append(self._id_tensor(self._id, value))
        return tensors

    def _id_tensor(self, control: SequenceControl, value: int | str) -> Tensor:
        if control.datatype == "BYTES":
            return Tensor(control.name, "BYTES", self._shape, [str(value).encode()])
        assert isinstance(value, int)
        # gRPC carries ids beyond 2**63 as negative numbers
        wrapped = value % _INT64_WRAP
        if control.datatype.startswith("INT"):
            wrapped -= _INT64_WRAP * (wrapped >= _INT64_WRAP // 2)
        return _tensor(control.name, control.datatype, wrapped, self._shape)

    def _wrong_id(self, request: InferenceRequest, control: SequenceControl, what: str) -> ServingError:
        return ServingError(
            Code.INVALID,
            f"inference request to model '{self._model}' has correlation ID '{request.sequence_id}', which is {what}: "
            f"control '{control.name}' is of type {control.datatype}",
        )


def _flag(control: SequenceControl, value: int | float | bool, shape: tuple[int, ...]) -> Tensor:
    return _tensor(control.name, control.datatype, value, shape)


def _tensor(name: str, datatype: str, value: int | float | bool, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, datatype, shape, np.full(shape, value, NUMPY_DTYPES[datatype]))
