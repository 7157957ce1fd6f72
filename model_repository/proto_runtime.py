"""Where and how a model runs: instance groups, optimization and warm-up, to and from protobuf."""

from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from backends.api.model_config import Accelerator, InstanceGroup, Optimization, RateLimiterResource, Warmup, WarmupInput
from model_repository.proto_tensors import datatype_from_proto, datatype_to_proto


def group_from_proto(item: Any) -> InstanceGroup:
    secondary = pb.ModelInstanceGroup.SecondaryDevice
    return InstanceGroup(
        name=item.name,
        kind=pb.ModelInstanceGroup.Kind.Name(item.kind),
        count=item.count,
        gpus=tuple(item.gpus),
        profile=tuple(item.profile),
        passive=item.passive,
        host_policy=item.host_policy,
        secondary_devices=tuple(
            (secondary.SecondaryDeviceKind.Name(device.kind), device.device_id) for device in item.secondary_devices
        ),
        resources=tuple(
            RateLimiterResource(resource.name, resource.count, getattr(resource, "global"))
            for resource in item.rate_limiter.resources
        ),
        resource_priority=item.rate_limiter.priority,
    )


def group_to_proto(group: InstanceGroup) -> Any:
    secondary = pb.ModelInstanceGroup.SecondaryDevice
    message = pb.ModelInstanceGroup(
        name=group.name,
        kind=group.kind,
        count=group.count,
        gpus=group.gpus,
        profile=group.profile,
        passive=group.passive,
        host_policy=group.host_policy,
        secondary_devices=[secondary(kind=kind, device_id=number) for kind, number in group.secondary_devices],
    )
    for resource in group.resources:
        message.rate_limiter.resources.add(
            **{"name": resource.name, "count": resource.count, "global": resource.is_global}
        )
    if group.resource_priority:
        message.rate_limiter.priority = group.resource_priority
    return message


def _accelerators(items: Any) -> tuple[Accelerator, ...]:
    return tuple(Accelerator(item.name, dict(item.parameters)) for item in items)


def optimization_from_proto(item: Any) -> Optimization:
    return Optimization(
        graph_level=item.graph.level,
        priority=pb.ModelOptimizationPolicy.ModelPriority.Name(item.priority),
        gpu_accelerators=_accelerators(item.execution_accelerators.gpu_execution_accelerator),
        cpu_accelerators=_accelerators(item.execution_accelerators.cpu_execution_accelerator),
        input_pinned_memory=item.input_pinned_memory.enable if item.HasField("input_pinned_memory") else True,
        output_pinned_memory=item.output_pinned_memory.enable if item.HasField("output_pinned_memory") else True,
        cuda_graphs=item.cuda.graphs,
        gather_kernel_buffer_threshold=item.gather_kernel_buffer_threshold,
        eager_batching=item.eager_batching,
    )


def optimization_to_proto(optimization: Optimization) -> Any:
    message = pb.ModelOptimizationPolicy(
        priority=optimization.priority,
        gather_kernel_buffer_threshold=optimization.gather_kernel_buffer_threshold,
        eager_batching=optimization.eager_batching,
    )
    message.input_pinned_memory.enable = optimization.input_pinned_memory
    message.output_pinned_memory.enable = optimization.output_pinned_memory
    if optimization.graph_level:
        message.graph.level = optimization.graph_level
    if optimization.cuda_graphs:
        message.cuda.graphs = True
    for item in optimization.gpu_accelerators:
        message.execution_accelerators.gpu_execution_accelerator.add(name=item.name, parameters=item.parameters)
    for item in optimization.cpu_accelerators:
        message.execution_accelerators.cpu_execution_accelerator.add(name=item.name, parameters=item.parameters)
    return message


def warmup_from_proto(item: Any) -> Warmup:
    def source(value: Any) -> str:
        kind = value.WhichOneof("input_data_type") or ""
        return str(value.input_data_file) if kind == "input_data_file" else kind

    inputs = {
        name: WarmupInput(datatype_from_proto(value.data_type), tuple(value.dims), source(value))
        for name, value in sorted(item.inputs.items())
    }
    return Warmup(item.name, item.batch_size, inputs, item.count)


def warmup_to_proto(warmup: Warmup) -> Any:
    message = pb.ModelWarmup(name=warmup.name, batch_size=warmup.batch_size, count=warmup.count)
    for name, value in warmup.inputs.items():
        entry = message.inputs[name]
        entry.data_type = datatype_to_proto(value.datatype)
        entry.dims.extend(value.dims)
        if value.source in ("zero_data", "random_data"):
            setattr(entry, value.source, True)
        elif value.source:
            entry.input_data_file = value.source
    return message
