"""Working stand-ins for a tensor backend, and short ways to ask a model."""

import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from backends.api.base import Placement
from backends.api.model_config import DynamicBatching, InstanceGroup, ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, RequestedOutput
from backends.api.tensor import Tensor
from scheduler.alarm import Alarm
from scheduler.load import start_tensor_model
from scheduler.tensor_model import TensorModel

Execute = Callable[[dict[str, Tensor], Sequence[str]], dict[str, Tensor]]
ALARM = Alarm()
EAGER = DynamicBatching()
PATIENCE = 20.0  # seconds after which a test that hangs fails


def echo(inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
    """OUT = IN."""
    given = inputs["IN"]
    return {"OUT": Tensor("OUT", given.datatype, given.shape, given.data)}


class FakeBackend:
    """Runs a Python function; knows how many of its instances are open. `any_thread`: where they run does not matter."""

    def __init__(self, execute: Execute = echo, *, any_thread: bool = False) -> None:
        self.any_thread = any_thread
        self.num_gpus = 0
        self.num_open = 0
        self.closed = 0
        self.lock = threading.Lock()
        self.function = execute

    def complete(self, config: ModelConfig) -> ModelConfig:
        return config

    def instance(self, placement: Placement) -> "FakeInstance":
        with self.lock:
            self.num_open += 1
        return FakeInstance(self)

    def close(self) -> None:
        self.closed += 1


class FakeInstance:
    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.thread = threading.get_ident()
        self.runs_on_any_thread = backend.any_thread

    def execute(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        assert self.runs_on_any_thread or threading.get_ident() == self.thread, "an instance runs where it was made"
        return self.backend.function(inputs, outputs)

    def close(self) -> None:
        with self.backend.lock:
            self.backend.num_open -= 1


class Gate:
    """An `echo` that waits inside each execution for `open`; counts and remembers the batches it saw."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self._entered = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def __call__(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        self.batches.append(np.asarray(inputs["IN"].data).ravel().tolist())
        self._entered.release()
        assert self._open.acquire(timeout=PATIENCE)
        return echo(inputs, outputs)

    def wait_entered(self) -> None:
        """Until one more execution has begun."""
        assert self._entered.acquire(timeout=PATIENCE)

    def open(self, times: int = 1) -> None:
        self._open.release(times)


def config(
    *,
    max_batch_size: int = 8,
    batching: DynamicBatching | None = EAGER,
    count: int = 1,
    instances: tuple[InstanceGroup, ...] = (),
    dims: tuple[int, ...] = (1,),
    **fields: object,
) -> ModelConfig:
    return ModelConfig(
        "fake",
        backend="fake",
        max_batch_size=max_batch_size,
        dynamic_batching=batching,
        inputs=(TensorSpec("IN", "FP32", dims),),
        outputs=(TensorSpec("OUT", "FP32", dims),),
        instance_groups=instances or (InstanceGroup(kind="KIND_CPU", count=count),),
        **fields,  # type: ignore[arg-type]
    )


def ask(*values: float, outputs: Sequence[str] = (), **fields: object) -> InferenceRequest:
    """A request of one row a value, in FP32 [rows, 1]."""
    array = np.array(values, np.float32).reshape(-1, 1)
    return InferenceRequest(
        "fake",
        "",
        [Tensor("IN", "FP32", array.shape, array)],
        [RequestedOutput(name) for name in outputs],
        **fields,  # type: ignore[arg-type]
    )


def answer(request: InferenceRequest) -> list[float]:
    """The values of OUT; raises the error that came instead."""
    response = request.stream.get(PATIENCE)
    assert response is not None
    return np.asarray(response.outputs[0].data).ravel().tolist()


@asynccontextmanager
async def serving(
    execute: Execute = echo, model_config: ModelConfig | None = None, **fields: object
) -> AsyncIterator[TensorModel]:
    """A running model over `execute`; drained and closed at the end."""
    backend = FakeBackend(execute)
    with tempfile.TemporaryDirectory() as folder:
        model = await start_tensor_model(
            backend,
            model_config or config(),
            "1",
            Path(folder),
            alarm=ALARM,
            **fields,  # type: ignore[arg-type]
        )
    try:
        yield model
    finally:
        await model.close()
        assert (backend.num_open, backend.closed) == (0, 1)
        assert model.num_waiting == 0
