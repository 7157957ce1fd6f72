"""`ModelConfig` to and from the protobuf message `inference.ModelConfig`, field by field.

The message class is `tritonclient.grpc.model_config_pb2`, the protocol's publisher. Its int64 fields
are plain numbers here and its TYPE_STRING is the protocol's BYTES.
"""

from itertools import pairwise
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from backends.api.errors import Code, ServingError
from backends.api.model_config import Accelerator, ModelConfig, VersionPolicy
from model_repository.proto_runtime import (
    group_from_proto,
    group_to_proto,
    optimization_from_proto,
    optimization_to_proto,
    warmup_from_proto,
    warmup_to_proto,
)
from model_repository.proto_scheduling import (
    dynamic_from_proto,
    dynamic_to_proto,
    ensemble_from_proto,
    ensemble_to_proto,
)
from model_repository.proto_sequence import sequence_from_proto, sequence_to_proto
from model_repository.proto_tensors import (
    batch_input_from_proto,
    batch_input_to_proto,
    batch_output_from_proto,
    batch_output_to_proto,
    input_from_proto,
    input_to_proto,
    output_from_proto,
    output_to_proto,
)

FIRST_RESPONSE_HISTOGRAM = "nv_inference_first_response_histogram_ms"  # the one family with settable buckets


def from_proto(message: Any) -> ModelConfig:
    """The typed form of an `inference.ModelConfig`.

    Unset scalars stay empty or 0 (an instance group's count too): `complete` fills them in. Raises
    ServingError(INVALID) for what the message can say and no configuration means.
    """
    scheduling = message.WhichOneof("scheduling_choice")
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        runtime=message.runtime,
        max_batch_size=message.max_batch_size,
        inputs=tuple(input_from_proto(item) for item in message.input),
        outputs=tuple(output_from_proto(item) for item in message.output),
        batch_inputs=tuple(batch_input_from_proto(item) for item in message.batch_input),
        batch_outputs=tuple(batch_output_from_proto(item) for item in message.batch_output),
        version_policy=_policy_from_proto(message.version_policy, message.name),
        instance_groups=tuple(group_from_proto(item) for item in message.instance_group),
        dynamic_batching=dynamic_from_proto(message.dynamic_batching) if scheduling == "dynamic_batching" else None,
        sequence_batching=(
            sequence_from_proto(message.sequence_batching, message.name) if scheduling == "sequence_batching" else None
        ),
        ensemble=ensemble_from_proto(message.ensemble_scheduling) if scheduling == "ensemble_scheduling" else None,
        decoupled=message.model_transaction_policy.decoupled,
        response_cache=message.response_cache.enable,
        default_model_filename=message.default_model_filename,
        cc_model_filenames=dict(message.cc_model_filenames),
        metric_tags=dict(message.metric_tags),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        optimization=optimization_from_proto(message.optimization),
        warmup=tuple(warmup_from_proto(item) for item in message.model_warmup),
        op_library_filenames=tuple(message.model_operations.op_library_filename),
        repository_agents=tuple(
            Accelerator(item.name, dict(item.parameters)) for item in message.model_repository_agents.agents
        ),
        response_histogram_buckets=_buckets_from_proto(message.model_metrics),
    )


def to_proto(config: ModelConfig) -> Any:
    """The `inference.ModelConfig` of `config`, with the fields that a real Triton always sets set."""
    message = pb.ModelConfig(
        name=config.name,
        platform=config.platform,
        backend=config.backend,
        runtime=config.runtime,
        max_batch_size=config.max_batch_size,
        input=[input_to_proto(spec) for spec in config.inputs],
        output=[output_to_proto(spec) for spec in config.outputs],
        batch_input=[batch_input_to_proto(item) for item in config.batch_inputs],
        batch_output=[batch_output_to_proto(item) for item in config.batch_outputs],
        version_policy=_policy_to_proto(config.version_policy),
        instance_group=[group_to_proto(group) for group in config.instance_groups],
        default_model_filename=config.default_model_filename,
        cc_model_filenames=config.cc_model_filenames,
        metric_tags=config.metric_tags,
        optimization=optimization_to_proto(config.optimization),
        model_warmup=[warmup_to_proto(item) for item in config.warmup],
    )
    for key, value in config.parameters.items():
        message.parameters[key].string_value = value
    _set_scheduling(message, config)
    _set_optional_messages(message, config)
    return message


def _set_scheduling(message: Any, config: ModelConfig) -> None:
    if config.dynamic_batching is not None:
        message.dynamic_batching.CopyFrom(dynamic_to_proto(config.dynamic_batching, config.max_batch_size))
    if config.sequence_batching is not None:
        message.sequence_batching.CopyFrom(sequence_to_proto(config.sequence_batching))
    if config.ensemble is not None:
        message.ensemble_scheduling.CopyFrom(ensemble_to_proto(config.ensemble))


def _set_optional_messages(message: Any, config: ModelConfig) -> None:
    if config.decoupled:
        message.model_transaction_policy.decoupled = True
    if config.response_cache:
        message.response_cache.enable = True
    if config.op_library_filenames:
        message.model_operations.op_library_filename.extend(config.op_library_filenames)
    for agent in config.repository_agents:
        message.model_repository_agents.agents.add(name=agent.name, parameters=agent.parameters)
    if config.response_histogram_buckets:
        control = message.model_metrics.metric_control.add()
        control.metric_identifier.family = FIRST_RESPONSE_HISTOGRAM
        control.histogram_options.buckets.extend(config.response_histogram_buckets)


def _policy_from_proto(policy: Any, model: str) -> VersionPolicy:
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(latest=0)
    if choice == "specific":
        if not policy.specific.versions:
            raise ServingError(
                Code.INVALID,
                f"version policy 'specific' must list at least one version for {model}",
                param="version_policy",
            )
        return VersionPolicy(specific=tuple(policy.specific.versions))
    if choice == "latest" and policy.latest.num_versions == 0:
        raise ServingError(
            Code.INVALID, f"version policy 'latest' must have 'num_versions' >= 1 for {model}", param="version_policy"
        )
    return VersionPolicy(latest=policy.latest.num_versions) if choice == "latest" else VersionPolicy()


def _policy_to_proto(policy: VersionPolicy) -> Any:
    kinds = pb.ModelVersionPolicy
    if policy.specific:
        return kinds(specific=kinds.Specific(versions=policy.specific))
    if policy.latest == 0:
        return kinds(all=kinds.All())
    return kinds(latest=kinds.Latest(num_versions=policy.latest))


def _buckets_from_proto(metrics: Any) -> tuple[float, ...]:
    buckets: tuple[float, ...] = ()
    for control in metrics.metric_control:
        family = control.metric_identifier.family
        buckets = tuple(control.histogram_options.buckets)
        if family != FIRST_RESPONSE_HISTOGRAM:
            text = f"model_metrics can set the buckets of {FIRST_RESPONSE_HISTOGRAM} alone, got '{family}'"
            raise ServingError(Code.UNSUPPORTED, text, param="model_metrics")
        if any(low >= high for low, high in pairwise((0.0, *buckets))):
            text = f"model_metrics must have buckets that grow from above 0, got {list(buckets)}"
            raise ServingError(Code.INVALID, text, param="model_metrics")
    return buckets
