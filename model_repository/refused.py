"""Fields that are understood and not acted on yet. They are refused, never ignored.

The one list: a feature that arrives deletes its line here (and in docs/model_config.md).
"""

from collections.abc import Iterator
from typing import Any

REFUSED = (
    "runtime",
    "cc_model_filenames",
    "model_operations",
    "input.is_shape_tensor",
    "input.is_non_linear_format_io",
    "output.is_shape_tensor",
    "output.is_non_linear_format_io",
    "instance_group.profile",
    "instance_group.host_policy",
    "instance_group.secondary_devices",
    "optimization.priority",
    "optimization.cuda.graphs",
    "optimization.cuda.busy_wait_events",
    "optimization.cuda.graph_spec",
    "optimization.cuda.output_copy_stream",
    "optimization.gather_kernel_buffer_threshold",
    "optimization.eager_batching",
)


def refused_fields(message: Any) -> Iterator[str]:
    """The paths (`input[0].is_shape_tensor`) in an `inference.ModelConfig` that this server does not act on."""
    for path in REFUSED:
        yield from _set_fields(message, path.split("."), "")


def _set_fields(message: Any, names: list[str], prefix: str) -> Iterator[str]:
    name, *rest = names
    descriptor = message.DESCRIPTOR.fields_by_name[name]
    if not any(descriptor is field for field, _ in message.ListFields()):
        return
    if not rest:
        yield prefix + name
        return
    value = getattr(message, name)
    if not descriptor.is_repeated:
        yield from _set_fields(value, rest, f"{prefix}{name}.")
        return
    for index, item in enumerate(value):
        yield from _set_fields(item, rest, f"{prefix}{name}[{index}].")
