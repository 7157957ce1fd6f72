"""The protocols: what a backend offers to the layers above it, and what the repository hands out."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from backends.api.errors import ServingError
from backends.api.model_config import InstanceGroup, ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest, InferenceResponse
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


class Gate(Protocol):
    """What a thread that waits for work waits at: a lock's two methods. `release` may be called on any thread."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class RequestBatch(Protocol):
    """Requests that run together. Each ends once: answered, finished, failed or cancelled; what comes after is dropped.

    Used on its instance's thread alone.
    """

    @property
    def requests(self) -> Sequence[InferenceRequest]: ...

    @property
    def is_over(self) -> bool:
        """Whether every request has ended."""
        ...

    def is_open(self, index: int) -> bool: ...

    def inputs(self, index: int) -> list[Tensor]:
        """A request's inputs in the shapes that the model knows."""
        ...

    def begins(self, now: float) -> None:
        """It has waited for another batch until now."""
        ...

    def executed(self, input_end: float, output_start: float) -> None:
        """The model was called once, from `input_end` to `output_start` in seconds of `time.monotonic()`."""
        ...

    def answer(self, outcomes: "Sequence[InferenceResponse | ServingError]") -> None:
        """The one outcome of each request."""
        ...

    def answer_one(self, index: int, response: InferenceResponse) -> None:
        """The one response of a request."""
        ...

    def put(self, index: int, response: InferenceResponse) -> None:
        """One response of several."""
        ...

    def finish(self, index: int, last: InferenceResponse | None = None) -> None:
        """Nothing more comes."""
        ...

    def reschedule(self, index: int) -> None:
        """The request is to be run once more, in a later batch."""
        ...

    def fail(self, index: int, error: ServingError) -> None: ...

    def fail_all(self, error: ServingError) -> None:
        """Every request that is still open."""
        ...

    def cancelled(self, index: int) -> None:
        """The reader has left, and has its end."""
        ...


class RequestInstance(Protocol):
    """One copy of a model that takes requests as they are, unmerged. Lives on one thread, or on an event loop while that waits."""

    @property
    def gate(self) -> Gate:
        """Where its thread waits for work; the instance does its other business there meanwhile."""
        ...

    def keep_alive(self) -> None:
        """It serves: from now on what runs it is started again when it ends by itself. On any thread, once."""
        ...

    @property
    def num_ahead(self) -> int:
        """How many batches it would take beside one, to run one after the other; on its thread."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether the next batch may begin."""
        ...

    def begin(self, batches: Sequence[RequestBatch]) -> None:
        """Have the batches run; answers come later. Never blocks, raises nothing."""
        ...

    def wait_until_free(self) -> None: ...

    def serve_on(self, loop: asyncio.AbstractEventLoop, serve: Callable[[], float | None]) -> None:
        """Live on `loop` and have `serve` called there whenever something has changed, until it returns None.

        Else it returns when it wants to be called at the latest, in seconds of `time.monotonic()`. Blocks the
        instance's thread, which is used for what would block the loop.
        """
        ...

    def aside(self, act: Callable[[], None]) -> None:
        """For `serve`, as the last thing it does: have `act` done on the instance's thread before all else."""
        ...

    def drain(self) -> None:
        """Return once every request has ended."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class RequestBackend(Protocol):
    """Like `TensorBackend`, for models that are handed the requests themselves."""

    @property
    def num_gpus(self) -> int: ...

    def complete(self, config: ModelConfig) -> ModelConfig: ...

    def request_instance(self, placement: Placement) -> RequestInstance: ...

    def stopping(self) -> None:
        """No new work comes: an instance that is down need not come up again. On any thread."""
        ...

    def close(self) -> None: ...


BackendFactory = Callable[[ModelConfig, Path, Mapping[str, str]], TensorBackend]
"""From a config, its version folder and what --backend-config says for this backend. Raises ServingError; the library is imported inside."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine is, as of its last step."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0


class TokenEngine(Protocol):
    """Generates tokens for many requests at once; in this process, a child, or on another machine."""

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Raises ServingError(INVALID) for requests that one answer needs all of and that the queue can never hold at once."""
        ...

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

    def clear_cache(self) -> None:
        """No later request finds a block computed before now."""
        ...

    async def drain(self) -> None:
        """Return once every request taken so far has ended."""
        ...

    async def close(self) -> None:
        """Finish nothing more: every open stream ends with UNAVAILABLE and all memory is given back."""
        ...


@runtime_checkable
class Resizable(Protocol):
    """What a `LiveModel` may be too: one whose instances change while it serves."""

    async def set_instances(self, groups: tuple[InstanceGroup, ...]) -> None:
        """Run on these instance groups from now on. Raises ServingError with everything as before."""
        ...


@runtime_checkable
class LiveModel(Protocol):
    """A loaded version of a model, as `find` returns it.

    Requests taken before `close` are answered; `close` returns when they are.

    Others also look for what not every model has: `statistics` (a ModelStatistics), `labels` (output -> class names),
    `namespace` (its repository, where names alone do not tell models apart), `load_seconds` (how long its load took), `infers_on_any_thread` (True: `infer` need not
    be called on the event loop), `is_ready` (False: not for the moment) and `check_ready`, a coroutine, for one that has to
    find out.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def version(self) -> str: ...

    def infer(self, request: InferenceRequest) -> None:
        """Take a request; its answers come on `request.stream`. Raises ServingError if refused at once."""
        ...

    async def close(self) -> None: ...


def is_ready(model: LiveModel) -> bool:
    """Whether a request would be taken now, without asking a model that has to find out."""
    return bool(getattr(model, "is_ready", True))


async def check_ready(model: LiveModel) -> bool:
    """Whether a request would be taken now, by the model's own word where it has one."""
    if not is_ready(model):
        return False
    find_out = getattr(model, "check_ready", None)
    return find_out is None or bool(await find_out())
