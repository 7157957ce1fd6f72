"""The trace and logging extensions: settings that clients may read and change while the server runs."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backends.api.errors import Code, ServingError

TRACE_LEVELS = frozenset({"OFF", "TIMESTAMPS", "TENSORS"})
LOG_FORMATS = ("default", "ISO8601", "json")
_COUNTS = ("trace_rate", "trace_count", "log_frequency")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """All values are text, as the extension has them."""

    trace_level: tuple[str, ...] = ("OFF",)
    trace_rate: str = "1000"
    trace_count: str = "-1"
    log_frequency: str = "0"
    trace_file: str = ""
    trace_mode: str = "triton"


class TraceControl:
    """Trace settings for the server and, where they differ, for single models. Any thread may call."""

    def __init__(self, settings: TraceSettings = TraceSettings()) -> None:
        self._lock = threading.Lock()
        self._default = settings
        self._global = settings
        self._by_model: dict[str, dict[str, Any]] = {}
        self.is_on = settings.trace_level != ("OFF",)  # whether any request may have to be traced

    def get(self, model: str = "") -> TraceSettings:
        with self._lock:
            return replace(self._global, **self._by_model.get(model, {}))

    def for_request(self, model: str) -> tuple[str, TraceSettings]:
        """What holds for a request of `model`, and whose setting it is: the model's name, "" for that of the server."""
        with self._lock:
            own = self._by_model.get(model)
            return (model, replace(self._global, **own)) if own else ("", self._global)

    def update(self, changes: Mapping[str, Any], model: str = "") -> TraceSettings:
        """Change what `changes` names; None goes back to the global value, or globally to that of the start.

        Raises ServingError and changes nothing: UNSUPPORTED for `trace_file`, INVALID for what is not a setting.
        """
        checked = {name: None if value is None else _trace_value(name, value) for name, value in changes.items()}
        _refuse_unwritable_trace(replace(self.get(model), **{k: v for k, v in checked.items() if v is not None}))
        with self._lock:
            if model:
                merged = {**self._by_model.get(model, {}), **checked}
                self._by_model[model] = {name: value for name, value in merged.items() if value is not None}
            else:
                restored = {k: getattr(self._default, k) if v is None else v for k, v in checked.items()}
                self._global = replace(self._global, **restored)
            levels = [self._global.trace_level, *(each.get("trace_level") for each in self._by_model.values())]
            self.is_on = any(level not in (None, ("OFF",)) for level in levels)
        return self.get(model)


def _refuse_unwritable_trace(settings: TraceSettings) -> None:
    if settings.trace_level != ("OFF",) and settings.trace_mode == "triton" and not settings.trace_file:
        raise ServingError(Code.INVALID, "Attempting to set invalid trace setting :trace file name is not given")
    if "TENSORS" in settings.trace_level:
        raise ServingError(
            Code.UNSUPPORTED, "trace level TENSORS is not offered: traces hold times, not tensors", param="trace_level"
        )


def _trace_value(name: str, value: Any) -> Any:
    if name == "trace_file":
        raise ServingError(
            Code.UNSUPPORTED, "trace file location can not be updated through network protocol", param=name
        )
    if name == "trace_level":
        return _trace_level(value)
    if name not in _COUNTS:
        known = ", ".join(("trace_level", *_COUNTS))
        raise ServingError(Code.INVALID, f"'{name}' is not a trace setting that can be changed: {known}", param=name)
    if not isinstance(value, str):
        raise ServingError(Code.INVALID, f"'{name}': attempt to access JSON non-string as string", param=name)
    try:
        number = int(value)
    except ValueError:
        raise ServingError(Code.INVALID, f"Unable to parse '{name}', got: {value}", param=name) from None
    if not (-1 if name == "trace_count" else 0) <= number < 1 << 31:
        raise ServingError(Code.INVALID, f"Unable to parse '{name}', got: {value}", param=name)
    if name == "trace_rate" and number == 0:
        text = "Attempting to set invalid trace setting :sample rate must be non-zero"
        raise ServingError(Code.INVALID, text, param=name)
    return value


def _trace_level(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ServingError(Code.INVALID, "'trace_level': attempt to access JSON non-array as array")
    for level in value:
        if level not in TRACE_LEVELS:
            known = ", ".join(sorted(TRACE_LEVELS))
            raise ServingError(Code.INVALID, f"'trace_level': '{level}' is not a level: {known}", param="trace_level")
    return tuple(value) or ("OFF",)


@dataclass(frozen=True, slots=True)
class LogSettings:
    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class LogControl:
    """Log settings; `apply` is told of every change."""

    def __init__(
        self, settings: LogSettings = LogSettings(), apply: Callable[[LogSettings], None] = lambda settings: None
    ) -> None:
        self._settings = settings
        self._apply = apply

    def get(self) -> LogSettings:
        return self._settings

    def update(self, changes: Mapping[str, Any]) -> LogSettings:
        """Raises ServingError and changes nothing: UNSUPPORTED for `log_file`, INVALID for what is not a setting."""
        for name, value in changes.items():
            _check_log_value(name, value)
        self._settings = replace(self._settings, **changes)
        self._apply(self._settings)
        return self._settings


def _check_log_value(name: str, value: Any) -> None:
    if name == "log_file":
        raise ServingError(
            Code.UNSUPPORTED, "log file location can not be updated through network protocol", param=name
        )
    if name in ("log_info", "log_warning", "log_error"):
        if not isinstance(value, bool):
            raise ServingError(Code.INVALID, f"'{name}': attempt to access JSON non-boolean as boolean", param=name)
    elif name == "log_verbose_level":
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            complaint = "attempt to access JSON non-unsigned-integer as unsigned-integer"
            raise ServingError(Code.INVALID, f"'{name}': {complaint}", param=name)
    elif name == "log_format":
        if value not in LOG_FORMATS:
            raise ServingError(Code.INVALID, f"invalid argument for --log_format, got: {value}", param=name)
    else:
        raise ServingError(Code.INVALID, f"'{name}' is not a log setting", param=name)
