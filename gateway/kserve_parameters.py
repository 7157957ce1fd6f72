"""Request parameters that the protocol itself gives a meaning to; all others travel on to the model."""

from dataclasses import dataclass, field

from backends.api.errors import Code, ServingError
from backends.api.request import Parameter

RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)


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
