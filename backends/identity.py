"""A backend that gives each input back as the output in the same place: for tests, examples and measurements.

The parameter `execute_delay_ms` makes every execution take that long.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.registry import register
from backends.api.tensor import Tensor


class IdentityInstance:
    def __init__(self, names: dict[str, str], delay: float) -> None:
        self._names = names  # input -> output
        self._delay = delay

    def execute(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        if self._delay:
            time.sleep(self._delay)
        answers = {}
        for name, tensor in inputs.items():
            target = self._names.get(name)
            if target is not None and (not outputs or target in outputs):
                answers[target] = Tensor(target, tensor.datatype, tensor.shape, tensor.data)
        return answers

    def close(self) -> None:
        """Holds nothing."""


class IdentityBackend:
    num_gpus = 0

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        text = config.parameters.get("execute_delay_ms", "0")
        try:
            self._delay = float(text) / 1000
        except ValueError:
            raise ServingError(
                Code.INVALID,
                f"model '{config.name}': parameter 'execute_delay_ms' must be a number, got '{text}'",
                param="execute_delay_ms",
            ) from None

    def complete(self, config: ModelConfig) -> ModelConfig:
        if not config.inputs or len(config.inputs) != len(config.outputs):
            raise ServingError(
                Code.INVALID,
                f"model '{config.name}': backend 'identity' expects as many outputs as inputs, at least 1, "
                f"got {len(config.inputs)} inputs and {len(config.outputs)} outputs",
            )
        for given, taken in zip(config.inputs, config.outputs, strict=True):
            if given.datatype != taken.datatype:
                raise ServingError(
                    Code.INVALID,
                    f"model '{config.name}': output '{taken.name}' must have the datatype of input '{given.name}', "
                    f"{given.datatype}, got {taken.datatype}",
                )
        return config

    def instance(self, placement: Placement) -> IdentityInstance:
        pairs = zip(self._config.inputs, self._config.outputs, strict=True)
        return IdentityInstance({given.name: taken.name for given, taken in pairs}, self._delay)

    def close(self) -> None:
        """Holds nothing."""


@register("identity")
def identity(config: ModelConfig, folder: Path, settings: Mapping[str, str]) -> IdentityBackend:
    return IdentityBackend(config)
