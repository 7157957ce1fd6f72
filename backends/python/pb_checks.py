"""Arguments of `pb_utils`, checked in the model's own process: the server takes what cannot be for garbage."""

import operator
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from backends.python.frames import ParameterValue
from backends.python.pb_tensor import Tensor, TritonModelException

UINT32 = range(1 << 32)
INT64 = range(-(1 << 63), 1 << 63)
UINT64 = range(1 << 64)


def text(argument: str, value: Any) -> str:
    """`value` as a plain str. Raises TypeError, ValueError for what is not Unicode."""
    if not isinstance(value, str):
        raise TypeError(f"{argument}: expected a str, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument}: {error}") from None
    return str(value)


def texts(argument: str, values: Iterable[Any]) -> list[str]:
    """Raises TypeError or ValueError."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{argument}: expected a list of str, found {type(values).__name__}")
    return [text(argument, value) for value in values]


def tensors(argument: str, values: Iterable[Any]) -> list[Tensor]:
    """Raises TypeError."""
    try:
        given = list(values)
    except TypeError:
        raise TypeError(f"{argument}: expected a list of Tensor objects, found {type(values).__name__}") from None
    for tensor in given:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{argument}: expected Tensor objects, found {type(tensor).__name__}")
    return given


def integer(argument: str, value: Any, among: range) -> int:
    """`value`, of numpy or Python, as an int. Raises TypeError, ValueError for one that is not `among` them."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: expected an int, found {type(value).__name__}") from None
    if number not in among:
        raise ValueError(f"{argument}: expected {among.start} to {among.stop - 1}, got {number}")
    return number


def parameters_of(values: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """Raises TritonModelException for what no protocol carries: other types, larger integers, no finite numbers."""
    return dict(_parameter(name, value) for name, value in values.items())


def _parameter(name: Any, value: Any) -> tuple[str, ParameterValue]:
    if not isinstance(name, str):
        raise _not_a_parameter(name, value)
    if isinstance(value, bool):
        return str(name), value
    if isinstance(value, str):
        return str(name), str(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise TritonModelException(f"parameter {name!r}: expected a finite number, got {value}")
        return str(name), float(value)
    try:
        return str(name), integer(f"parameter {name!r}", value, INT64)
    except TypeError:
        raise _not_a_parameter(name, value) from None
    except ValueError as error:
        raise TritonModelException(str(error)) from None


def _not_a_parameter(name: Any, value: Any) -> TritonModelException:
    return TritonModelException(
        "Expect parameters keys to have type str and values to have type bool/int/float/str, "
        f"found {name!r} of type {type(value).__name__}"
    )
