"""The sequence batching part of `ModelConfig` to and from protobuf: strategies, controls and implicit state."""

from typing import Any, NoReturn

from tritonclient.grpc import model_config_pb2 as pb

from backends.api.errors import Code, ServingError
from backends.api.model_config import (
    DirectStrategy,
    InitialState,
    OldestStrategy,
    SequenceBatching,
    SequenceControl,
    SequenceState,
)
from model_repository.proto_tensors import datatype_from_proto, datatype_to_proto

DEFAULT_IDLE_MICROSECONDS = 1_000_000
_PREFIX = "CONTROL_SEQUENCE_"
_FLAG_FIELDS = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}


def sequence_from_proto(message: Any, model: str) -> SequenceBatching:
    """Raises ServingError(INVALID) for a control whose two values are missing, doubled or not two."""
    return SequenceBatching(
        strategy=_strategy_from_proto(message),
        max_sequence_idle_microseconds=message.max_sequence_idle_microseconds or DEFAULT_IDLE_MICROSECONDS,
        controls=tuple(
            _control_from_proto(tensor.name, control, model)
            for tensor in message.control_input
            for control in tensor.control or _no_control(tensor.name, model)
        ),
        states=tuple(_state_from_proto(state) for state in message.state),
        iterative_sequence=message.iterative_sequence,
    )


def sequence_to_proto(batching: SequenceBatching) -> Any:
    message = pb.ModelSequenceBatching(
        max_sequence_idle_microseconds=batching.max_sequence_idle_microseconds,
        iterative_sequence=batching.iterative_sequence,
        state=[_state_to_proto(state) for state in batching.states],
    )
    _set_strategy(message, batching.strategy)
    tensors: dict[str, Any] = {}
    for control in batching.controls:
        tensor = tensors.get(control.name)
        if tensor is None:
            tensor = tensors[control.name] = message.control_input.add(name=control.name)
        tensor.control.append(_control_to_proto(control))
    return message


def _strategy_from_proto(message: Any) -> DirectStrategy | OldestStrategy:
    if message.WhichOneof("strategy_choice") != "oldest":
        direct = message.direct
        return DirectStrategy(direct.max_queue_delay_microseconds, direct.minimum_slot_utilization)
    oldest = message.oldest
    return OldestStrategy(
        oldest.max_candidate_sequences,
        tuple(oldest.preferred_batch_size),
        oldest.max_queue_delay_microseconds,
        oldest.preserve_ordering,
    )


def _set_strategy(message: Any, strategy: DirectStrategy | OldestStrategy) -> None:
    if isinstance(strategy, OldestStrategy):
        message.oldest.max_candidate_sequences = strategy.max_candidate_sequences
        message.oldest.preferred_batch_size.extend(strategy.preferred_batch_size)
        message.oldest.max_queue_delay_microseconds = strategy.max_queue_delay_microseconds
        message.oldest.preserve_ordering = strategy.preserve_ordering
        return
    message.direct.SetInParent()
    message.direct.max_queue_delay_microseconds = strategy.max_queue_delay_microseconds
    message.direct.minimum_slot_utilization = strategy.minimum_slot_utilization


def _control_from_proto(name: str, control: Any, model: str) -> SequenceControl:
    kind = str(pb.ModelSequenceBatching.Control.Kind.Name(control.kind)).removeprefix(_PREFIX)
    if kind == "CORRID":
        return SequenceControl(name, kind, datatype_from_proto(control.data_type))
    given = [field for field in _FLAG_FIELDS if len(getattr(control, field))]
    if len(given) != 1:
        fault = "more than one of" if given else "one of"
        verb = "specifies" if given else "must specify"
        raise _bad_control(f"sequence batching {verb} {fault} {_quoted(_FLAG_FIELDS)} for {_PREFIX}{kind} for {model}")
    values = tuple(getattr(control, given[0]))
    if len(values) != 2:
        raise _bad_control(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {_PREFIX}{kind} for {model}"
        )
    return SequenceControl(name, kind, _FLAG_FIELDS[given[0]], (values[0], values[1]))


def _control_to_proto(control: SequenceControl) -> Any:
    message = pb.ModelSequenceBatching.Control(kind=_PREFIX + control.kind)
    if control.false_true is None:
        message.data_type = datatype_to_proto(control.datatype)
    else:
        field = next(field for field, name in _FLAG_FIELDS.items() if name == control.datatype)
        getattr(message, field).extend(control.false_true)
    return message


def _state_from_proto(state: Any) -> SequenceState:
    initial = [
        InitialState(item.name, datatype_from_proto(item.data_type), tuple(item.dims), item.data_file)
        for item in state.initial_state[:1]
    ]
    return SequenceState(
        state.input_name,
        state.output_name,
        datatype_from_proto(state.data_type),
        tuple(state.dims),
        initial[0] if initial else None,
        state.use_same_buffer_for_input_output,
        state.use_growable_memory,
    )


def _state_to_proto(state: SequenceState) -> Any:
    message = pb.ModelSequenceBatching.State(
        input_name=state.input_name,
        output_name=state.output_name,
        data_type=datatype_to_proto(state.datatype),
        dims=state.dims,
        use_same_buffer_for_input_output=state.use_same_buffer_for_input_output,
        use_growable_memory=state.use_growable_memory,
    )
    if state.initial_state is not None:
        initial = state.initial_state
        entry = message.initial_state.add(
            name=initial.name,
            data_type=datatype_to_proto(initial.datatype),
            dims=initial.dims,
            data_file=initial.data_file,
        )
        if not initial.data_file:
            entry.ClearField("data_file")
            entry.zero_data = True
    return message


def _quoted(names: dict[str, str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _no_control(name: str, model: str) -> NoReturn:
    raise _bad_control(f"sequence batching control tensor '{name}' specifies no control for {model}")


def _bad_control(text: str) -> ServingError:
    return ServingError(Code.INVALID, text, param="sequence_batching.control_input")
