"""A tensor backend under sequence batching: batches padded to slots (direct strategy), and the states of sequences."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from backends.api.base import Placement, TensorBackend, TensorInstance
from backends.api.errors import Code, ServingError
from backends.api.model_config import DirectStrategy, InitialState, ModelConfig, SequenceState, TensorSpec
from backends.api.tensor import NUMPY_DTYPES, Tensor
from scheduler.sequence_controls import SLOT, SequenceControls


def with_sequence_tensors(config: ModelConfig) -> ModelConfig:
    """`config` as the model's file has it: control inputs and states are inputs and outputs there like all others.

    Where the config leaves inputs or outputs to the backend, it finds these too.
    """
    sequence = config.sequence_batching
    if sequence is None:
        return config
    controls = [TensorSpec(control.name, control.datatype, (1,)) for control in sequence.controls]
    states_in = [TensorSpec(state.input_name, state.datatype, state.dims) for state in sequence.states]
    states_out = [TensorSpec(state.output_name, state.datatype, state.dims) for state in sequence.states]
    return replace(
        config,
        inputs=_joined(config.inputs, [*controls, *states_in]) if config.inputs else (),
        outputs=_joined(config.outputs, states_out) if config.outputs else (),
    )


def _joined(specs: tuple[TensorSpec, ...], more: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    known = {spec.name for spec in specs}
    return (*specs, *(spec for spec in more if spec.name not in known))


def _without_sequence_tensors(config: ModelConfig, given: ModelConfig) -> ModelConfig:
    """`config` as clients see it. A state is an output too where the given config lists it."""
    assert config.sequence_batching is not None
    sequence = config.sequence_batching
    hidden = {control.name for control in sequence.controls} | {state.input_name for state in sequence.states}
    kept = {spec.name for spec in given.outputs}
    states_out = {state.output_name for state in sequence.states} - kept
    return replace(
        config,
        inputs=tuple(spec for spec in config.inputs if spec.name not in hidden),
        outputs=tuple(spec for spec in config.outputs if spec.name not in states_out),
    )


class SlotBackend:
    """A `TensorBackend` over another one. `folder` holds the files of initial states."""

    is_steady = False

    def __init__(self, backend: TensorBackend, folder: Path) -> None:
        self._backend = backend
        self._folder = folder
        self._config: ModelConfig | None = None

    @property
    def num_gpus(self) -> int:
        return self._backend.num_gpus

    def complete(self, config: ModelConfig) -> ModelConfig:
        completed = _without_sequence_tensors(self._backend.complete(with_sequence_tensors(config)), config)
        if any(spec.allow_ragged_batch for spec in completed.inputs):
            text = f"model '{config.name}': sequence batching has no ragged inputs (allow_ragged_batch)"
            raise ServingError(Code.UNSUPPORTED, text)
        self._config = completed
        return completed

    def instance(self, placement: Placement) -> "SlotInstance":
        assert self._config is not None
        states = SequenceStates(self._config, self._folder)
        return SlotInstance(self._backend.instance(placement), self._config, states)

    def close(self) -> None:
        self._backend.close()


class SequenceStates:
    """What the sequences of one instance carry from step to step: for each slot a row of each state."""

    def __init__(self, config: ModelConfig, folder: Path) -> None:
        """Raises ServingError(INVALID) for an initial state that cannot be had."""
        assert config.sequence_batching is not None
        self._batching = config.max_batch_size > 0
        self._specs = config.sequence_batching.states
        self._initial = {
            spec.input_name: _initial_state(config.name, spec, folder, self._batching) for spec in self._specs
        }
        self._rows: dict[int, dict[str, Tensor]] = {}
        self.output_names = [spec.output_name for spec in self._specs]

    def start(self, slot: int) -> None:
        self._rows[slot] = dict(self._initial)

    def shapes(self, slot: int) -> tuple[tuple[int, ...], ...]:
        rows = self._rows.get(slot, self._initial)
        return tuple(rows[spec.input_name].shape for spec in self._specs)

    def inputs(self, slots: Sequence[int | None]) -> dict[str, Tensor]:
        """The states of these slots as one batch; None stands for a slot without a request."""
        columns = [self._initial if slot is None else self._rows.get(slot, self._initial) for slot in slots]
        return {
            spec.input_name: _stacked([column[spec.input_name] for column in columns])
            if self._batching
            else columns[0][spec.input_name]
            for spec in self._specs
        }

    def keep(self, slots: Sequence[int | None], outputs: dict[str, Tensor]) -> None:
        """Raises ServingError(INTERNAL) for a model that gave no state."""
        for spec in self._specs:
            tensor = outputs.get(spec.output_name)
            if tensor is None:
                raise ServingError(Code.INTERNAL, f"the model gave no output '{spec.output_name}', which is a state")
            for row, slot in enumerate(slots):
                if slot is not None:
                    rows = self._rows.setdefault(slot, dict(self._initial))
                    # a copy, as a view would keep the whole batch
                    rows[spec.input_name] = (
                        _picked(tensor, [row], spec.input_name)
                        if self._batching
                        else replace(tensor, name=spec.input_name)
                    )


class SlotInstance:
    """Runs batches of requests that carry their slot; a batch without (a warm-up) is one of new sequences."""

    def __init__(self, instance: TensorInstance, config: ModelConfig, states: SequenceStates) -> None:
        assert config.sequence_batching is not None
        self._instance = instance
        self._states = states
        self._batching = config.max_batch_size > 0
        self._pads = self._batching and isinstance(config.sequence_batching.strategy, DirectStrategy)
        self._outputs = [spec.name for spec in config.outputs]
        self._empty = {tensor.name: tensor for tensor in SequenceControls(config, with_slots=False).empty()}

    def execute(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        inputs = dict(inputs)
        marks = inputs.pop(SLOT, None)
        if marks is None:
            return self._warm_up(inputs, outputs)
        slots = [int(mark) >> 1 for mark in marks.as_numpy().flat]
        for slot, mark in zip(slots, marks.as_numpy().flat, strict=True):
            if mark & 1:
                self._states.start(slot)
        groups: dict[object, list[int]] = {}
        for row, slot in enumerate(slots):
            groups.setdefault(self._states.shapes(slot), []).append(row)
        if len(groups) == 1:
            return self._run(inputs, outputs, slots)
        # states of unlike shapes cannot share a batch
        parts: dict[str, list[tuple[int, Tensor]]] = {}
        for rows in groups.values():
            picked = {name: _picked(tensor, rows, name) for name, tensor in inputs.items()}
            for name, tensor in self._run(picked, outputs, [slots[row] for row in rows]).items():
                parts.setdefault(name, []).extend(
                    (row, _picked(tensor, [place], name)) for place, row in enumerate(rows)
                )
        return {
            name: _stacked([tensor for _, tensor in sorted(rows, key=lambda each: each[0])])
            for name, rows in parts.items()
        }

    def close(self) -> None:
        self._instance.close()

    def _warm_up(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        num_rows = next(iter(inputs.values())).shape[0] if self._batching and inputs else 1
        for name, tensor in self._empty.items():
            inputs.setdefault(name, _stacked([tensor] * num_rows) if self._batching else tensor)
        return self._instance.execute({**inputs, **self._states.inputs([None] * num_rows)}, outputs)

    def _run(self, inputs: dict[str, Tensor], outputs: Sequence[str], slots: list[int]) -> dict[str, Tensor]:
        places = slots if self._pads else list(range(len(slots)))
        size = max(places) + 1
        at: list[int | None] = [None] * size
        for place, slot in zip(places, slots, strict=True):
            at[place] = slot
        is_dense = places == list(range(size))
        if not is_dense:
            inputs = {name: self._spread(tensor, places, size) for name, tensor in inputs.items()}
        wanted = [*outputs, *(name for name in self._states.output_names if name not in outputs)] if outputs else []
        results = self._instance.execute({**inputs, **self._states.inputs(at)}, wanted)
        self._states.keep(at, results)
        shown = outputs or self._outputs
        results = {name: tensor for name, tensor in results.items() if name in shown}
        if is_dense:
            return results
        return {name: self._gathered(tensor, places, size) for name, tensor in results.items()}

    def _spread(self, tensor: Tensor, places: list[int], size: int) -> Tensor:
        """The rows of `tensor` at their places, with empty ones between."""
        empty = self._empty.get(tensor.name)
        shape = (size, *tensor.shape[1:])
        rows = tensor.as_numpy()
        if tensor.datatype == "BYTES":
            array = np.full(shape, b"", dtype=object)
        else:
            array = np.full(shape, 0 if empty is None else empty.as_numpy().flat[0], rows.dtype)
        array[places] = rows
        data = list(array.ravel()) if tensor.datatype == "BYTES" else array
        return Tensor(tensor.name, tensor.datatype, shape, data)

    def _gathered(self, tensor: Tensor, places: list[int], size: int) -> Tensor:
        if not tensor.shape or tensor.shape[0] != size:
            raise ServingError(
                Code.INTERNAL,
                f"output '{tensor.name}' has shape {list(tensor.shape)}, expected {size} rows for a batch of {size} slots",
                reason="wrong_output",
            )
        return _picked(tensor, places, tensor.name)


def _picked(tensor: Tensor, rows: list[int], name: str) -> Tensor:
    array = tensor.as_numpy()[rows]
    data = list(array.ravel()) if tensor.datatype == "BYTES" else array
    return Tensor(name, tensor.datatype, array.shape, data)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    array = np.concatenate([tensor.as_numpy() for tensor in tensors])
    data = list(array.ravel()) if first.datatype == "BYTES" else array
    return Tensor(first.name, first.datatype, array.shape, data)


def _initial_state(model: str, state: SequenceState, folder: Path, batching: bool) -> Tensor:
    """What a sequence begins with; zeros where the config says nothing."""
    initial = state.initial_state
    dims = state.dims if initial is None else initial.dims
    if any(dim < 0 for dim in dims):
        text = (
            f"model '{model}': state '{state.input_name}' has variable dims and needs an initial_state with fixed ones"
        )
        raise ServingError(Code.INVALID, text)
    shape = (1, *dims) if batching else dims
    size = int(np.prod(shape, dtype=np.int64))
    if initial is not None and initial.data_file:
        return _read_state(model, state, initial, folder, shape)
    if state.datatype == "BYTES":
        return Tensor(state.input_name, "BYTES", shape, [b""] * size)
    return Tensor(state.input_name, state.datatype, shape, np.zeros(shape, NUMPY_DTYPES[state.datatype]))


def _read_state(
    model: str, state: SequenceState, initial: InitialState, folder: Path, shape: tuple[int, ...]
) -> Tensor:
    where = f"model '{model}': initial state '{initial.name}': data file '{initial.data_file}'"
    if state.datatype == "BYTES":
        raise ServingError(Code.UNSUPPORTED, f"{where}: strings are not read from files, expected zero_data")
    path = folder / initial.data_file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ServingError(Code.INVALID, f"{where} must lie inside the model's folder initial_state")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ServingError(Code.INVALID, f"{where} cannot be read: {error.strerror}") from error
    dtype = NUMPY_DTYPES[state.datatype]
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(content) != size:
        raise ServingError(Code.INVALID, f"{where} has {len(content)} bytes, expected {size}")
    return Tensor(state.input_name, state.datatype, shape, np.frombuffer(content, dtype).reshape(shape))
