"""Dynamic batching, queue policies and ensembles of `ModelConfig` to and from protobuf."""

from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from backends.api.model_config import DynamicBatching, Ensemble, EnsembleStep, QueuePolicy, TimeoutAction


def _queue_policy_from_proto(policy: Any) -> QueuePolicy:
    return QueuePolicy(
        TimeoutAction(pb.ModelQueuePolicy.TimeoutAction.Name(policy.timeout_action)),
        policy.default_timeout_microseconds,
        policy.allow_timeout_override,
        policy.max_queue_size,
    )


def _queue_policy_to_proto(policy: QueuePolicy) -> Any:
    return pb.ModelQueuePolicy(
        timeout_action=policy.timeout_action.value,
        default_timeout_microseconds=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def dynamic_from_proto(item: Any) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_size=tuple(item.preferred_batch_size),
        max_queue_delay_microseconds=item.max_queue_delay_microseconds,
        preserve_ordering=item.preserve_ordering,
        priority_levels=item.priority_levels,
        default_priority_level=item.default_priority_level,
        default_queue_policy=_queue_policy_from_proto(item.default_queue_policy),
        priority_queue_policy={
            level: _queue_policy_from_proto(policy) for level, policy in sorted(item.priority_queue_policy.items())
        },
    )


def dynamic_to_proto(batching: DynamicBatching, max_batch_size: int) -> Any:
    """As Triton prints it: preferred sizes that are left out are the largest batch, which is how they act."""
    default = (max_batch_size,) if max_batch_size > 0 else ()
    message = pb.ModelDynamicBatching(
        preferred_batch_size=batching.preferred_batch_size or default,
        max_queue_delay_microseconds=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
    )
    if batching.default_queue_policy != QueuePolicy():
        message.default_queue_policy.CopyFrom(_queue_policy_to_proto(batching.default_queue_policy))
    for level, policy in batching.priority_queue_policy.items():
        message.priority_queue_policy[level].CopyFrom(_queue_policy_to_proto(policy))
    return message


def ensemble_from_proto(item: Any) -> Ensemble:
    steps = (
        EnsembleStep(
            step.model_name, step.model_version, dict(step.input_map), dict(step.output_map), step.model_namespace
        )
        for step in item.step
    )
    return Ensemble(tuple(steps), item.max_inflight_requests)


def ensemble_to_proto(ensemble: Ensemble) -> Any:
    message = pb.ModelEnsembling(max_inflight_requests=ensemble.max_inflight_requests)
    for step in ensemble.steps:
        message.step.add(
            model_name=step.model_name,
            model_version=step.model_version,
            input_map=step.input_map,
            output_map=step.output_map,
            model_namespace=step.model_namespace,
        )
    return message
