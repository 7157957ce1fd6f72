"""Custom models written by tests, loaded as the server loads them, and short ways to ask them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from backends.api.base import LiveModel, check_ready
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.tensor import Tensor
from backends.python.backend import PythonBackend, config_texts
from backends.python.calls import Services
from backends.python.supervisor import Supervisor
from model_repository.complete import complete
from model_repository.pbtxt import parse_json, parse_text, to_json
from scheduler.alarm import Alarm
from scheduler.bls import ModelCalls
from scheduler.load import start_tensor_model
from scheduler.python_model import PythonModel

ALARM = Alarm()
PATIENCE = 30.0  # seconds after which a test that hangs fails
HEAD = "import numpy as np\nimport triton_python_backend_utils as pb\n"
ONE_INT = """
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
DECOUPLED = ONE_INT + "model_transaction_policy { decoupled: true }\n"
TO_TEXT, OF_TEXT = config_texts(to_json, parse_json)


def write(folder: Path, source: str, name: str = "model.py") -> Path:
    """A model's folder with version 1 of `source`."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / name).write_text(HEAD + source)
    return folder


class Models:
    """A repository of what was loaded."""

    def __init__(self) -> None:
        self.models: dict[str, LiveModel] = {}
        self.log: list[tuple[Any, ...]] = []

    def find(self, name: str, version: str = "") -> LiveModel:
        if name not in self.models:
            raise ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        return self.models[name]

    async def check_ready(self, name: str, version: str = "") -> bool:
        return name in self.models and await check_ready(self.models[name])

    async def load(
        self, name: str, config_override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        self.log.append(("load", name, config_override, files))
        if name == "missing":
            raise ServingError(Code.NOT_FOUND, "failed to load 'missing', no such model")

    async def unload(self, name: str, unload_dependents: bool = False, *, waits: bool = True) -> None:
        self.log.append(("unload", name, unload_dependents))
        closing = [asyncio.ensure_future(self.models[name].close())] if name in self.models else []
        if waits:
            await asyncio.gather(*closing)


class Loaded:
    """The models of one test, closed with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Models()
        self._services: Services | None = None

    async def load(self, name: str, source: str, config: str = ONE_INT, **changes: float) -> PythonModel:
        """`changes` are the supervisor's waits."""
        folder = write(self.folder / name, source)
        parsed = complete(parse_text(config.encode(), "config.pbtxt"), name, [folder / "1"])
        if self._services is None:
            self._services = ModelCalls(self.repository, asyncio.get_running_loop())
        backend = PythonBackend(parsed, folder / "1", "1", to_json=TO_TEXT, of_json=OF_TEXT, services=self._services)
        backend.supervisor = Supervisor(**{"first": 0.01, **changes})
        model = await start_tensor_model(backend, parsed, "1", folder / "warmup", alarm=ALARM)
        self.repository.models[name] = model
        return model

    async def close(self) -> None:
        for model in self.repository.models.values():
            await asyncio.wait_for(model.close(), PATIENCE)


@asynccontextmanager
async def loaded(folder: Path) -> AsyncIterator[Loaded]:
    models = Loaded(folder)
    try:
        yield models
    finally:
        await models.close()


def request(values: Any = (1,), **fields: Any) -> InferenceRequest:
    array = np.asarray(values, np.int32).reshape(1, -1)
    return InferenceRequest("model", "", [Tensor.from_numpy("IN", array)], **fields)


async def responses(model: LiveModel, asked: InferenceRequest) -> list[InferenceResponse]:
    """All its answers. Raises ServingError."""

    async def collect() -> list[InferenceResponse]:
        return [response async for response in asked.stream]

    model.infer(asked)
    return await asyncio.wait_for(collect(), PATIENCE)


async def ask(model: LiveModel, values: Any = (1,), **fields: Any) -> list[list[Any]]:
    """The first output's values of each answer. Raises ServingError."""
    answers = await responses(model, request(values, **fields))
    return [np.asarray(answer.outputs[0].as_numpy()).ravel().tolist() for answer in answers if answer.outputs]


async def failure(model: LiveModel, values: Any = (1,), **fields: Any) -> ServingError:
    try:
        got = await ask(model, values, **fields)
    except ServingError as error:
        return error
    raise AssertionError(f"expected an error, got {got}")
