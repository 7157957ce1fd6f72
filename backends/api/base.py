"""The protocols: what a backend offers to the layers above it, and what the repository hands out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest
from backends.api.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one instance of a model runs. `kind` is "CPU", "GPU" or "MODEL"; `device` the GPU's number."""

    name: str
    kind: str = "CPU"
    device: int = 0


class TensorInstance(Protocol):
    """One copy of a model that runs one batch at a time, always on the same thread."""

    def execute(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        """Run one batch and return the outputs asked for (all when `outputs` is empty).

        With batching, every tensor's first dimension is the batch. Raises ServingError for a batch it
        cannot run; any other exception is reported as INTERNAL. Blocks, and releases the GIL where its
        library does.
        """
        ...

    def close(self) -> None: ...


class TensorBackend(Protocol):
    """A model file opened by its framework: it completes the config and makes instances.

    `num_gpus` is how many GPUs it can place instances on, 0 for none.
    """

    @property
    def num_gpus(self) -> int: ...

    def complete(self, config: ModelConfig) -> ModelConfig:
        """`config` with what the file knows (inputs, outputs, max_batch_size) filled in where left out.

        Raises ServingError(INVALID) where the config contradicts the file.
        """
        ...

    def instance(self, placement: Placement) -> TensorInstance: ...

    def close(self) -> None: ...


BackendFactory = Callable[[ModelConfig, Path], TensorBackend]
"""From a config and its version folder. Raises ServingError; the library is imported inside."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is, as of its last step."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0


class TokenEngine(Protocol):
    """Generates tokens for many requests at once; in this process, a child, or on another machine."""

    def generate(self, request: GenerateRequest) -> None:
        """Take a request; its tokens come on its stream, whose cancel drops it within one step.

        Raises ServingError at once: INVALID for a prompt that can never fit, OVERLOADED with a full
        queue, UNAVAILABLE while (re)starting or closing.
        """
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now, the queue aside: False while (re)starting and once closed."""
        ...

    @property
    def load(self) -> EngineLoad: ...

    async def drain(self) -> None:
        """Return once every request taken so far has ended."""
        ...

    async def close(self) -> None:
        """Finish nothing more: every open stream ends with UNAVAILABLE and all memory is given back."""
        ...


@runtime_checkable
class LiveModel(Protocol):
    """A loaded version of a model, as `find` returns it.

    Requests taken before `close` are answered; `close` returns when they are.

    Fronts also look for what not every model has: `statistics` (a ModelStatistics), `labels` (output -> class names),
    and `infers_on_any_thread` (True: `infer` need not be called on the event loop).
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def version(self) -> str: ...

    def infer(self, request: InferenceRequest) -> None:
        """Take a request; its answers come on `request.stream`. Raises ServingError if refused at once."""
        ...

    async def close(self) -> None: ...
