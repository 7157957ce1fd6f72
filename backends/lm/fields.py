"""Reading the untyped head of a model file: each field checked, each error with file, field and value."""

from collections.abc import Mapping
from typing import Any

from backends.api.errors import Code, ServingError

_MISSING: Any = object()


class Fields:
    """The fields of a config.json or of GGUF metadata. A null is a field left out; without default it must be there."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Fields":
        given = {name: value for name, value in self.values.items() if value is not None}
        return Fields({**defaults, **given}, self.where)

    def integer(self, name: str, default: Any = _MISSING, minimum: int = 1) -> int:
        value = self._value(name, default, "an integer")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(name, f"an integer of at least {minimum}")
        return value

    def number(self, name: str, default: Any = _MISSING) -> float:
        value = self._value(name, default, "a number")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "a number")
        return float(value)

    def positive(self, name: str, default: Any = _MISSING) -> float:
        value = self.number(name, default)
        if not 0 < value < float("inf"):
            raise self.error(name, "a positive number")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = _MISSING) -> str:
        value = self._value(name, default, "a string")
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        value = self._value(name, _MISSING, f"{count} numbers")
        if not isinstance(value, list) or len(value) != count or not all(isinstance(x, int | float) for x in value):
            raise self.error(name, f"{count} numbers")
        return tuple(float(x) for x in value)

    def section(self, name: str) -> "Fields":
        """The object under `name`; empty if there is none."""
        value = self._value(name, {}, "an object")
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self.where}: {name}")

    def error(self, name: str, expected: str, code: Code = Code.INVALID) -> ServingError:
        got = repr(self.values[name]) if name in self.values else "nothing"
        return ServingError(code, f"{self.where}: field '{name}': expected {expected}, got {got[:200]}")

    def _value(self, name: str, default: Any, expected: str) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.error(name, expected)
        return default
