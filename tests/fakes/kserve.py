"""Models and a repository that work, for tests of the KServe fronts, and a real server around them."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI

from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig, TensorSpec
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.statistics import ModelStatistics
from backends.api.tensor import Tensor
from gateway.admission import Admission
from gateway.browsers import BrowserRules
from gateway.front_door import make_gate
from gateway.http_protocol import HttpProtocol
from gateway.joined_writes import TurnEnd
from gateway.kserve_grpc import GrpcOptions, GrpcServer
from gateway.kserve_http import routes
from gateway.kserve_http_direct import DirectInfer
from gateway.kserve_http_infer import HotPath
from gateway.kserve_service import Service
from gateway.settings import Settings
from gateway.shared_memory import CudaSharedMemory, SharedMemory
from model_repository.pbtxt import to_json
from model_repository.proto import to_proto
from model_repository.states import IndexEntry, State

Behaviour = Callable[["FakeModel", InferenceRequest], None]


@dataclass(eq=False)
class FakeModel:
    """A LiveModel whose `behaviour` answers on the caller's thread, later, or never."""

    config: ModelConfig
    behaviour: Behaviour
    version: str = "1"
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    silenced: SimpleQueue[InferenceRequest] = field(default_factory=SimpleQueue)

    def infer(self, request: InferenceRequest) -> None:
        self.behaviour(self, request)

    async def close(self) -> None: ...

    def answer(self, outputs: list[Tensor], **more: Any) -> InferenceResponse:
        return InferenceResponse(self.config.name, self.version, outputs, **more)


@dataclass
class FakeRepository:
    models: dict[str, dict[str, FakeModel]] = field(default_factory=dict)
    loaded: list[tuple[str, str | None, Mapping[str, bytes] | None]] = field(default_factory=list)
    unloaded: list[tuple[str, bool]] = field(default_factory=list)
    ready: bool = True

    def add(self, *models: FakeModel) -> None:
        for model in models:
            self.models.setdefault(model.config.name, {})[model.version] = model

    def find(self, name: str, version: str = "") -> FakeModel:
        versions = self.models.get(name)
        if versions is None:
            raise ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        if version and version not in versions:
            text = f"Request for unknown model: '{name}' version {version} is not found"
            raise ServingError(Code.NOT_FOUND, text)
        return versions[version or max(versions, key=int)]

    def index(self, ready_only: bool = False) -> list[IndexEntry]:
        entries = [
            IndexEntry(name, version, State.READY.value)
            for name, versions in self.models.items()
            for version in versions
        ]
        broken = IndexEntry("bad", "1", State.UNAVAILABLE.value, "it is broken")
        return entries if ready_only else [*entries, IndexEntry("absent"), broken]

    def live_models(self) -> list[FakeModel]:
        return [model for versions in self.models.values() for model in versions.values()]

    def versions(self, name: str) -> list[str]:
        return sorted(self.models.get(name, {}), key=int)

    def is_ready(self, name: str, version: str = "") -> bool:
        return name in self.models and (not version or version in self.models[name])

    async def check_ready(self, name: str, version: str = "") -> bool:
        return self.is_ready(name, version)

    def all_ready(self) -> bool:
        return self.ready

    async def load(
        self, name: str, config_override: str | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        if name == "nope":
            raise ServingError(Code.INTERNAL, "failed to load 'nope', failed to poll from model repository")
        self.loaded.append((name, config_override, files))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        self.unloaded.append((name, unload_dependents))


def echo(model: FakeModel, request: InferenceRequest) -> None:
    """Input i comes back as output i."""
    names = {spec.name: out.name for spec, out in zip(model.config.inputs, model.config.outputs, strict=True)}
    outputs = [Tensor(names[given.name], given.datatype, given.shape, given.data) for given in request.inputs]
    request.stream.finish(model.answer(outputs))


def repeat(model: FakeModel, request: InferenceRequest) -> None:
    """One answer for each element of IN; a negative one ends the stream with an error."""
    for value in request.inputs[0].as_numpy().ravel():
        if value < 0:
            request.stream.fail(ServingError(Code.INVALID, "neg"))
            return
        output = Tensor("OUT", "INT32", (1,), np.array([value], np.int32))
        request.stream.put(model.answer([output], final=False))
    request.stream.finish()


def boom(model: FakeModel, request: InferenceRequest) -> None:
    request.stream.fail(ServingError(Code.UNAVAILABLE, "boom"))


def crash(model: FakeModel, request: InferenceRequest) -> None:
    raise RuntimeError("a bug of the scheduler")


def silent(model: FakeModel, request: InferenceRequest) -> None:
    """Takes the request and never answers."""
    model.silenced.put(request)


def nothing(model: FakeModel, request: InferenceRequest) -> None:
    """Ends well without an answer."""
    request.stream.finish()


def identity(
    name: str, datatype: str = "FP32", dims: tuple[int, ...] = (-1,), batch: int = 8, **more: Any
) -> FakeModel:
    config = ModelConfig(
        name=name,
        backend="identity",
        max_batch_size=batch,
        inputs=(TensorSpec("IN", datatype, dims),),
        outputs=(TensorSpec("OUT", datatype, dims),),
        decoupled=more.pop("decoupled", False),
        instance_groups=(InstanceGroup(f"{name}_0", "KIND_CPU"),),
    )
    return FakeModel(config, more.pop("behaviour", echo), **more)


def standard_models() -> list[FakeModel]:
    """The models of the wire tests; the same names as those the real Triton is given."""
    text = ModelConfig(
        name="text",
        backend="python",
        inputs=(TensorSpec("PROMPT", "BYTES", (1,)), TensorSpec("LIMIT", "INT32", (1,), optional=True)),
        outputs=(TensorSpec("TEXT", "BYTES", (1,)), TensorSpec("COUNT", "INT32", (1,))),
    )
    two = ModelConfig(
        name="two",
        backend="python",
        max_batch_size=4,
        inputs=(TensorSpec("A", "INT32", (2,)), TensorSpec("B", "INT32", (2,), optional=True)),
        outputs=(TensorSpec("OUT_A", "INT32", (2,)), TensorSpec("OUT_B", "INT32", (2,))),
    )
    return [
        identity("ident", dims=(4,)),
        identity("ident_var", "INT32"),
        identity("ident_raw", batch=0),
        identity("ident_bytes", "BYTES"),
        identity("ident_bool", "BOOL"),
        identity("ident_fp16", "FP16"),
        identity("ident_bf16", "BF16"),
        identity("ident_uint8", "UINT8"),
        identity("ident_fp64", "FP64"),
        FakeModel(text, echo),
        FakeModel(two, echo),
        identity("repeat", "INT32", batch=0, decoupled=True, behaviour=repeat),
        identity("failing", dims=(4,), behaviour=boom),
        identity("crashing", dims=(4,), behaviour=crash),
        identity("silent", dims=(4,), behaviour=silent),
        identity("endless", "INT32", batch=0, decoupled=True, behaviour=silent),
        identity("nothing", dims=(4,), behaviour=nothing),
    ]


def service(**changes: Any) -> Service:
    repository = FakeRepository()
    repository.add(*standard_models())
    allowed: dict[str, Any] = {
        "system_memory": SharedMemory(allowed=True),
        "cuda_memory": CudaSharedMemory(allowed=True),
    }
    return Service(repository, to_json, to_proto, **{**allowed, **changes})


def keyed_service(folder: Path, keys: str) -> Service:
    """A service that asks for one of `keys`, an `--api-key-file` written in `folder`."""
    path = folder / "keys.toml"
    path.write_text(keys)
    return service(gate=make_gate(Settings(api_key_file=str(path))))


def application(kserve: Service) -> Any:
    app = FastAPI()
    app.router.routes.extend(routes(kserve))
    return HotPath(app, kserve)


@contextmanager
def http_server(kserve: Service) -> Iterator[str]:
    """A real HTTP server on loopback around `kserve`; gives its `host:port`."""
    protocol: Any = partial(HttpProtocol, turn_end=TurnEnd(), direct=DirectInfer(kserve, BrowserRules(None)))
    app = application(kserve)
    config = uvicorn.Config(
        app if kserve.gate is None else Admission(app, kserve.gate),
        port=0,
        log_level="warning",
        lifespan="off",
        loop="uvloop",
        http=protocol,
    )
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(10)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@contextmanager
def grpc_server(kserve: Service, options: GrpcOptions | None = None) -> Iterator[str]:
    """A real gRPC server on loopback around `kserve`; gives its `host:port`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = GrpcServer(kserve, loop, options or GrpcOptions(port=0))
    try:
        yield f"127.0.0.1:{server.start()}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0.5), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
