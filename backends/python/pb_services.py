"""`pb_utils`' logger, metrics and model control."""

import base64
import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import pairwise
from math import inf
from typing import Any

from backends.python.frames import Control, Log, Measure, Register, number_of
from backends.python.pb_tensor import TritonModelException
from backends.python.runtime import runtime

_COUNTER, _GAUGE, _HISTOGRAM = "counter", "gauge", "histogram"


class LogLevel(Enum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


Level = LogLevel


class Logger:
    """Writes to the server's log."""

    LogLevel = LogLevel
    INFO, WARNING, ERROR, VERBOSE = LogLevel

    @staticmethod
    def log(message: str, level: "Level" = LogLevel.INFO) -> None:
        runtime().link.send(Log(_LEVELS[level], str(message)))

    @staticmethod
    def log_info(message: str) -> None:
        Logger.log(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        Logger.log(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        Logger.log(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        Logger.log(message, LogLevel.VERBOSE)


class Metric:
    """One time series. The server keeps the value; instances of a model that name the same one share it."""

    def __init__(self, number: int, kind: str) -> None:
        self._number = number
        self._kind = kind

    def increment(self, value: float) -> None:
        self._check("increment", _COUNTER, _GAUGE)
        if self._kind == _COUNTER and value < 0:
            raise TritonModelException(f"Invalid argument: a counter cannot be decreased, got {value}")
        self._measure("increment", value)

    def set(self, value: float) -> None:
        self._check("set", _GAUGE)
        self._measure("set", value)

    def observe(self, value: float) -> None:
        self._check("observe", _HISTOGRAM)
        self._measure("observe", value)

    def value(self) -> float:
        self._check("value", _COUNTER, _GAUGE)
        return runtime().ask(lambda number: Measure(self._number, "value", 0.0, number))

    def _measure(self, operation: str, value: float) -> None:
        runtime().link.send(Measure(self._number, operation, number_of(float(value)), 0))

    def _check(self, operation: str, *kinds: str) -> None:
        if self._kind not in kinds:
            raise TritonModelException(f"Unsupported: {operation} is not offered by a {self._kind}")


class MetricFamily:
    """Metrics of one name, told apart by labels; on /metrics with the server's own."""

    COUNTER, GAUGE, HISTOGRAM = _COUNTER, _GAUGE, _HISTOGRAM

    def __init__(self, name: str, description: str, kind: str) -> None:
        if kind not in (_COUNTER, _GAUGE, _HISTOGRAM):
            raise TritonModelException(f"unknown metric kind {kind!r}")
        self._name = name
        self._description = description
        self._kind = kind
        self._register({}, [], kind="family:" + kind)

    def Metric(  # noqa: N802 - Triton's name
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        if self._kind == _HISTOGRAM and not buckets:
            raise TritonModelException("a histogram needs buckets")
        if self._kind != _HISTOGRAM and buckets is not None:
            raise TritonModelException(f"Unsupported: a {self._kind} has no buckets")
        bounds = [float(bound) for bound in buckets or ()]
        if not all(low < high for low, high in pairwise([-inf, *bounds, inf])):
            raise TritonModelException("Bucket Boundaries must be strictly sorted, and finite")
        named = {str(key): str(value) for key, value in (labels or {}).items()}
        return Metric(self._register(named, bounds, self._kind), self._kind)

    def _register(self, labels: dict[str, str], buckets: list[float], kind: str) -> int:
        return int(runtime().ask(lambda number: Register(number, self._name, self._description, kind, labels, buckets)))


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Load or reload a model. Raises TritonModelException with the reason of a failure."""
    encoded = {name: base64.b64encode(content).decode() for name, content in (files or {}).items()}
    _control("load", model_name, config, encoded)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have a model take no new requests. It goes once it has answered those it has, for which this does not wait."""
    _control("unload", model_name, "1" if unload_dependents else "")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    return bool(_control("is_ready", model_name, str(model_version)))


def _control(operation: str, model: str, argument: str, files: dict[str, str] | None = None) -> float:
    def make(number: int) -> Any:
        return Control(number, operation, model, argument, files or {})

    return runtime().ask(make)
