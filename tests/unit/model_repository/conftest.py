"""A model folder on disk and a loader that works, with models whose requests end when the test says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig
from backends.api.request import InferenceRequest, InferenceResponse

TENSORS = """
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
"""


class FakeModel:
    """Answers when told to. `closed` counts; a request after `close` began is refused, one before is awaited."""

    def __init__(self, config: ModelConfig, version: str, folder: Path) -> None:
        self.config, self.version, self.folder = config, version, folder
        self.namespace = ""
        self.closed = 0
        self.is_open = True
        self.is_ready = True  # False while what runs it restarts
        self._pending: list[InferenceRequest] = []
        self._idle = asyncio.Event()
        self._idle.set()

    def infer(self, request: InferenceRequest) -> None:
        if not self.is_open:
            raise ServingError(Code.UNAVAILABLE, f"model '{self.config.name}' is closing")
        self._pending.append(request)
        self._idle.clear()

    def answer(self) -> None:
        assert not self.closed, "a closed model answers nothing"
        for request in self._pending:
            request.stream.finish(InferenceResponse(self.config.name, self.version, []))
        self._pending.clear()
        self._idle.set()

    async def close(self) -> None:
        self.is_open = False
        await self._idle.wait()
        self.closed += 1


class ResizableModel(FakeModel):
    """`most` is how many instances it can have."""

    most = 4

    async def set_instances(self, groups: tuple[InstanceGroup, ...]) -> None:
        if sum(group.count for group in groups) > self.most:
            raise ServingError(Code.UNAVAILABLE, f"version {self.version} has no room")
        self.config = replace(self.config, instance_groups=groups)


@dataclass
class FakeLoader:
    """A parameter `fail` is the reason for which a version (`fail_VERSION`) or all fail; `crash` raises otherwise.

    With `gate`, a load waits for it. The first `num_faults` loads fail.
    """

    kind: type[FakeModel] = FakeModel
    num_faults: int = 0

    models: list[FakeModel] = field(default_factory=list)
    gate: asyncio.Event | asyncio.Barrier | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most_running: int = 0

    async def __call__(self, config: ModelConfig, version: str, folder: Path, *, namespace: str = "") -> FakeModel:
        self.started.set()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.running -= 1
        if self.num_faults:
            self.num_faults -= 1
            raise ServingError(Code.UNAVAILABLE, "not this time")
        reason = config.parameters.get(f"fail_{version}", config.parameters.get("fail"))
        if reason:
            raise ServingError(Code.INTERNAL, reason)
        if "crash" in config.parameters:
            raise KeyError(config.parameters["crash"])
        self.models.append(self.kind(config, version, folder))
        self.models[-1].namespace = namespace
        return self.models[-1]

    @property
    def open(self) -> list[FakeModel]:
        return [model for model in self.models if model.is_open]


@pytest.fixture
def loader() -> FakeLoader:
    return FakeLoader()


@pytest.fixture(scope="session")
def new_loader() -> Callable[[], FakeLoader]:
    return FakeLoader


WriteModel = Callable[..., Path]


def _writer_in(root: Path) -> WriteModel:
    """write(name, text, versions): a model folder below root/models, rewritten when it is there."""
    stamp = iter(range(1, 1_000_000))

    def write(name: str, text: str = "", versions: tuple[int, ...] = (1,), repository: str = "models") -> Path:
        folder = root / repository / name
        folder.mkdir(parents=True, exist_ok=True)
        # the comment makes each writing a change of size and content, however coarse the file system's clock is
        (folder / "config.pbtxt").write_text(f'backend: "identity"\n{TENSORS}{text}\n' + "#" * next(stamp))
        for version in versions:
            (folder / str(version)).mkdir(exist_ok=True)
        return folder

    (root / "models").mkdir()
    return write


@pytest.fixture(scope="session")
def writer_in() -> Callable[[Path], WriteModel]:
    return _writer_in


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    return _writer_in(tmp_path)


@pytest.fixture
def request_for() -> Callable[[str], InferenceRequest]:
    return lambda name: InferenceRequest(name, "", [])
