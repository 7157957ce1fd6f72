"""What the scheduling choice of a configuration must hold, and what may stand beside it."""

from collections import Counter
from collections.abc import Iterator

from backends.api.model_config import (
    DirectStrategy,
    DynamicBatching,
    ModelConfig,
    QueuePolicy,
    SequenceBatching,
    TimeoutAction,
)
from model_repository.check_ensemble import ensemble_problems
from model_repository.complete import ENSEMBLE
from model_repository.problem import Problem

_CORRELATION_TYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")


def scheduling_problems(config: ModelConfig) -> Iterator[Problem]:
    if config.dynamic_batching is not None:
        yield from _dynamic(config.dynamic_batching, config)
    if config.sequence_batching is not None:
        yield from _sequence(config.sequence_batching, config)
    yield from _ensemble(config)
    if config.response_cache and (config.sequence_batching is not None or config.decoupled):
        which = "sequence batching" if config.sequence_batching is not None else "a decoupled transaction policy"
        yield Problem("response_cache", f"response caching does not support {which}, which is set for {config.name}")


def _preferred(path: str, kind: str, sizes: tuple[int, ...], config: ModelConfig) -> Iterator[Problem]:
    for size in sizes:
        if size <= 0:
            yield Problem(path, f"{kind} preferred size must be positive for {config.name}")
        elif config.max_batch_size > 0 and size > config.max_batch_size:
            yield Problem(path, f"{kind} preferred size must be <= max batch size for {config.name}")


def _dynamic(batching: DynamicBatching, config: ModelConfig) -> Iterator[Problem]:
    path, levels = "dynamic_batching", batching.priority_levels
    yield from _preferred(f"{path}.preferred_batch_size", "dynamic batching", batching.preferred_batch_size, config)
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            text = f"default priority level must be in range [1, {levels}] for {config.name}"
            yield Problem(f"{path}.default_priority_level", text)
        for level in batching.priority_queue_policy:
            if not 1 <= level <= levels:
                text = f"priority queue policy must have priority level in range [1, {levels}] for {config.name}"
                yield Problem(f"{path}.priority_queue_policy", text)
    if batching.preserve_ordering:
        yield from _ordering(batching, config.name)


def _ordering(batching: DynamicBatching, model: str) -> Iterator[Problem]:
    path = "dynamic_batching.preserve_ordering"
    if batching.priority_levels > 1:
        yield Problem(path, f"Only one priority level is allowed when 'preserve_ordering' is true for {model}")
    if any(_delays(policy) for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values())):
        yield Problem(
            path, f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model}"
        )


def _delays(policy: QueuePolicy) -> bool:
    may_time_out = policy.default_timeout_microseconds > 0 or policy.allow_timeout_override
    return may_time_out and policy.timeout_action is TimeoutAction.DELAY


def _sequence(batching: SequenceBatching, config: ModelConfig) -> Iterator[Problem]:
    path, strategy = "sequence_batching", batching.strategy
    if isinstance(strategy, DirectStrategy):
        if not 0.0 <= strategy.minimum_slot_utilization <= 1.0:
            text = f"sequence batching minimum slot utilization must be in range [0.0, 1.0] for {config.name}"
            yield Problem(f"{path}.direct", text)
    else:
        yield from _preferred(f"{path}.oldest", "sequence batching", strategy.preferred_batch_size, config)
    yield from _controls(batching, config.name)
    for state in batching.states:
        if not (state.input_name and state.output_name and state.datatype and state.dims):
            text = f"sequence batching state must specify 'input_name', 'output_name', 'data_type' and 'dims' for {config.name}"
            yield Problem(f"{path}.state", text)


def _controls(batching: SequenceBatching, model: str) -> Iterator[Problem]:
    path = "sequence_batching.control_input"
    for kind, count in Counter(control.kind for control in batching.controls).items():
        if count > 1:
            yield Problem(path, f"sequence batching specifies multiple CONTROL_SEQUENCE_{kind} tensors for {model}")
    for name, count in Counter(control.name for control in batching.controls).items():
        if not name:
            yield Problem(path, f"sequence batching control tensor must have a name for {model}")
        elif count > 1:
            yield Problem(
                path, f"sequence batching control tensor '{name}' is specified for multiple control kinds for {model}"
            )
    for control in batching.controls:
        if control.kind == "CORRID" and control.datatype not in _CORRELATION_TYPES:
            text = f"unexpected data type for control CONTROL_SEQUENCE_CORRID '{control.name}' for {model}"
            yield Problem(path, f"{text}, expected one of {', '.join(_CORRELATION_TYPES)}")


def _ensemble(config: ModelConfig) -> Iterator[Problem]:
    if config.ensemble is None:
        if config.platform == ENSEMBLE:
            text = f"ensemble scheduling must be set for ensemble {config.name} whose platform is ensemble"
            yield Problem("platform", text)
        return
    if config.platform != ENSEMBLE:
        text = f"ensemble scheduling cannot be set for model '{config.name}' whose platform is not ensemble"
        yield Problem("ensemble_scheduling", text)
    yield from ensemble_problems(config.ensemble, config)
