"""Request parameters that the protocol itself gives a meaning to; all others travel on to the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backends.api.errors import Code, ServingError
from backends.api.request import Parameter

RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)

EMPTY_FINAL = "triton_enable_empty_final_response"
"""gRPC streams only: also tell the end of a decoupled answer by an empty message."""
_PROTO_KINDS = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    EMPTY_FINAL: ("bool_param",),
}


@dataclass(slots=True)
class RequestParameters:
    """The meaning of a request's `parameters`. `timeout` is in microseconds; `custom` is for the model."""

    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout: int = 0
    binary_data_output: bool = False
    custom: dict[str, Parameter] = field(default_factory=dict)


NONE = RequestParameters()
"""Of a request without parameters: shared, never written."""


def from_json(parameters: dict[str, object]) -> RequestParameters:
    """Raises ServingError(INVALID) in Triton's words for a reserved name or a wrong type."""
    result = RequestParameters()
    for name, value in parameters.items():
        if name == "sequence_id":
            result.sequence_id = _sequence_id(value)
        elif name in ("sequence_start", "sequence_end", "binary_data_output"):
            if not isinstance(value, bool):
                raise _wrong_type(name, "non-boolean as boolean")
            setattr(result, name, value)
        elif name in ("priority", "timeout"):
            setattr(result, name, unsigned(name, value))
        elif name != "headers":  # Triton takes this name for forwarded headers and drops it
            result.custom[name] = _custom(name, value)
    return result


def unsigned(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise _wrong_type(name, "non-unsigned-integer as unsigned-integer")
    return value


def _sequence_id(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return value
    if isinstance(value, str):
        return value
    raise _wrong_type("sequence_id", "non-string as string")


def _custom(name: str, value: object) -> Parameter:
    if name.startswith("triton_"):
        raise ServingError(
            Code.INVALID,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            param=name,
        )
    if isinstance(value, bool | int | float | str):
        return value
    raise ServingError(
        Code.INVALID,
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.",
        param=name,
    )


def _wrong_type(name: str, complaint: str) -> ServingError:
    return ServingError(Code.INVALID, f"Unable to parse '{name}': attempt to access JSON {complaint}", param=name)


def from_proto(parameters: Mapping[str, Any]) -> RequestParameters:
    """From a map of `InferParameter`. Raises ServingError(INVALID) in Triton's words."""
    result = RequestParameters()
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if name in _PROTO_KINDS:
            check_kind(name, kind, _PROTO_KINDS[name])
        elif kind is None:
            text = f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
            raise ServingError(Code.INVALID, text, param=name)
        value: Any = getattr(parameter, kind)
        if name in ("priority", "timeout") and value < 0:
            raise ServingError(Code.INVALID, f"invalid value for '{name}', expected value >= 0.", param=name)
        if name in ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout"):
            setattr(result, name, value)
        elif name.startswith("triton_") and name != EMPTY_FINAL:
            raise ServingError(
                Code.INVALID,
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}",
                param=name,
            )
        elif name != "headers" and name != EMPTY_FINAL:
            result.custom[name] = value
    return result


def check_kind(name: str, kind: str | None, expected: tuple[str, ...]) -> None:
    if kind not in expected:
        wanted = " or ".join(expected)
        raise ServingError(Code.INVALID, f"invalid value type for '{name}' parameter, expected {wanted}.", param=name)
