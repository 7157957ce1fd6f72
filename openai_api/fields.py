"""A JSON object read member by member with strict types, and errors that name the member at fault.

null is absent. A number is not a string, true is not 1, 2.0 is an integer.
"""

from collections.abc import Callable, Collection
from typing import TypeVar

from backends.api.errors import ServingError
from openai_api.errors import invalid

T = TypeVar("T")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def kind_of(value: object) -> str:
    """The JSON type of a parsed value, in words."""
    return _KINDS[type(value)]


def wrong_type(param: str, want: str, value: object) -> ServingError:
    return invalid("invalid_type", param, f"'{param}': expected {want}, got {kind_of(value)}")


class Fields:
    """The members of one object; `path` is where it stands in the body ("" for the body itself)."""

    __slots__ = ("_read", "path", "values")

    def __init__(self, values: dict[str, object], path: str = "") -> None:
        self.values = values
        self.path = path
        self._read: set[str] = set()

    def param(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def raw(self, name: str) -> object:
        """The member as it was parsed, None when absent."""
        self._read.add(name)
        return self.values.get(name)

    def unread(self) -> list[str]:
        """Members nobody asked for."""
        return sorted(self.values.keys() - self._read)

    def missing(self, name: str) -> ServingError:
        param = self.param(name)
        return invalid("missing_required_parameter", param, f"'{param}' is required")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.param(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int | None:
        value = self.raw(name)
        return None if value is None else read_integer(value, self.param(name), low, high)

    def number(self, name: str, low: float, high: float, *, low_is_out: bool = False) -> float | None:
        """A finite number in [low, high], or (low, high] with `low_is_out`."""
        value = self.raw(name)
        return None if value is None else read_number(value, self.param(name), low, high, low_is_out=low_is_out)

    def string(self, name: str, max_length: int | None = None, min_length: int = 0) -> str | None:
        value = self.raw(name)
        return None if value is None else read_string(value, self.param(name), max_length, min_length)

    def choice(self, name: str, allowed: Collection[str]) -> str | None:
        value = self.string(name)
        if value is not None and value not in allowed:
            param = self.param(name)
            raise invalid("invalid_value", param, f"'{param}': expected one of {', '.join(sorted(allowed))}")
        return value

    def truncation(self) -> int | None:
        """vLLM's `truncate_prompt_tokens`, which all endpoints that take a text have: -1 is what the model has room for."""
        count, param = self.integer("truncate_prompt_tokens", -1), self.param("truncate_prompt_tokens")
        if count == 0:
            raise _out_of_range("integer_below_min_value", param, "of at least 1, or -1 for the model's length", count)
        return count

    def child(self, name: str) -> "Fields | None":
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong_type(self.param(name), "an object", value)
        return Fields(value, self.param(name))

    def array(
        self, name: str, read: Callable[[object, str], T], max_length: int, min_length: int = 0
    ) -> list[T] | None:
        """The items, each through `read(item, its param)`, which raises for a wrong one."""
        value = self.raw(name)
        return None if value is None else read_array(value, self.param(name), read, max_length, min_length)


def read_integer(value: object, param: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(param, "an integer", value)
    if value < low:
        raise _out_of_range("integer_below_min_value", param, f"at least {low}", value)
    if value > high:
        raise _out_of_range("integer_above_max_value", param, f"at most {high}", value)
    return value


def read_number(value: object, param: str, low: float, high: float, *, low_is_out: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(param, "a number", value)
    if value < low or (low_is_out and value == low):
        raise _out_of_range("decimal_below_min_value", param, f"{'above' if low_is_out else 'at least'} {low:g}", value)
    if value > high:
        raise _out_of_range("decimal_above_max_value", param, f"at most {high:g}", value)
    return float(value)


def read_string(value: object, param: str, max_length: int | None = None, min_length: int = 0) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if len(value) < min_length:
        message = f"'{param}': expected at least {min_length} characters, got {len(value)}"
        raise invalid("string_below_min_length" if value else "invalid_value", param, message)
    if max_length is not None and len(value) > max_length:
        message = f"'{param}': expected at most {max_length} characters, got {len(value)}"
        raise invalid("string_above_max_length", param, message)
    return value


def read_array(
    value: object, param: str, read: Callable[[object, str], T], max_length: int, min_length: int = 0
) -> list[T]:
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    if len(value) < min_length:
        reason = "array_below_min_length" if value else "empty_array"
        raise invalid(reason, param, f"'{param}': expected at least {min_length} items, got {len(value)}")
    if len(value) > max_length:
        message = f"'{param}': expected at most {max_length} items, got {len(value)}"
        raise invalid("array_above_max_length", param, message)
    return [read(item, f"{param}[{i}]") for i, item in enumerate(value)]


def _out_of_range(reason: str, param: str, want: str, value: float) -> ServingError:
    shown = f"{value:g}" if isinstance(value, float) else str(value)[:24]
    return invalid(reason, param, f"'{param}': expected a value {want}, got {shown}")
