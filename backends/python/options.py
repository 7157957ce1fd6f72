"""What a custom model's configuration says about its process: parameters of its config.pbtxt."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig

_OF_SERVER = {
    "stub-timeout-seconds": "INITIALIZE_TIMEOUT_SECS"
}  # a server's setting -> the parameter it is the default of


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """Each field is the config parameter of its name in capitals. Seconds; 0 is without limit.

    `max_concurrency`: batches that an `async def execute` works on at once. `execution_timeout_secs`: a call of
    `execute` that takes longer is taken for hung, the process is ended and started again; so is one that is still
    at it `abandoned_timeout_secs` after the last of its callers has gone. `initialize_timeout_secs` likewise for
    the load. `response_window`: responses of a request that may wait for a slow reader before `send` blocks.
    """

    max_concurrency: int = 256
    execution_timeout_secs: float = 0.0
    abandoned_timeout_secs: float = 30.0
    initialize_timeout_secs: float = 0.0
    finalize_timeout_secs: float = 10.0
    response_window: int = 32
    execution_env_path: str = ""

    @classmethod
    def of(cls, config: ModelConfig, settings: Mapping[str, str] = {}) -> "PythonOptions":
        """`settings` are those of --backend-config python, where the config says nothing. Raises ServingError(INVALID)."""
        values: dict[str, Any] = {}
        of_server = {_OF_SERVER[name]: value for name, value in settings.items() if name in _OF_SERVER}
        for name in cls.__slots__:
            text = {**of_server, **config.parameters}.get(name.upper())
            if text is not None:
                values[name] = _convert(config.name, name.upper(), text, type(getattr(_DEFAULTS, name)))
        return cls(**values)


def _convert(model: str, name: str, text: str, kind: type) -> Any:
    if kind is str:
        return text
    try:
        value = kind(text)
        if not math.isfinite(value) or value < (1 if kind is int else 0):
            raise ValueError
    except ValueError:
        wanted = "a whole number of at least 1" if kind is int else "a number of seconds"
        raise ServingError(
            Code.INVALID, f"model '{model}': parameter '{name}': expected {wanted}, got '{text}'"
        ) from None
    return value


_DEFAULTS = PythonOptions()
