"""Custom Python models over real HTTP and gRPC with Triton's clients: the examples, and a stop of the server."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

ROOT = Path(__file__).parents[2]
PATIENCE = 60
NUM_INSTANCES = 14


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Served:
    """`tidegate serve` over a repository, in a process of its own."""

    def __init__(self, repository: Path) -> None:
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
        flags = {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        ports = [part for name, address in flags.items() for part in (f"--{name}-port", address.split(":")[1])]
        command = [sys.executable, "-m", "gateway", "serve", "--model-repository", str(repository), *ports]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ})
        assert self.process.stderr is not None
        self.log = ""
        for line in self.process.stderr:
            self.log += line
            if re.search(r"\bready: ", line):
                return
        raise AssertionError(self.log)

    def stop(self) -> int:
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        self.log += self.process.stderr.read()
        code = self.process.wait(PATIENCE)
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        return code


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(ROOT / "examples" / "python_models")
    yield server
    if server.process.poll() is None:
        server.stop()
    assert server.process.stderr is not None
    server.process.stderr.close()


@pytest.fixture(scope="module")
def examples() -> Any:
    spec = importlib.util.spec_from_file_location("python_models_client", ROOT / "examples/clients/python_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client(served: Served) -> Iterator[http.InferenceServerClient]:
    client = http.InferenceServerClient(served.http)
    yield client
    client.close()


pytestmark = pytest.mark.slow


def test_the_example_models_answer_their_client(
    served: Served, examples: Any, client: http.InferenceServerClient
) -> None:
    assert examples.add(client, 2.0, 3.0) == [5.0] * 4
    assert examples.squares(served.grpc, 5) == [0, 1, 4, 9, 16]
    assert examples.squares(served.grpc, 0) == []
    assert examples.sum_of_squares(client, 4) == 14
    assert examples.add_by_name(client, "add_sub", 2.0, 3.0) == [5.0] * 4
    assert examples.sums_of_squares(served.grpc, 4) == [0, 1, 5, 14]
    assert examples.repeated(served.grpc, [7, 7, 8]) == [7, 7, 8]
    assert examples.count_down(served.grpc, 2) == [2, 1, 0]
    assert examples.where(client) == ["MODEL", "0", "anywhere_0"]
    assert examples.upper(client, "grüße") == "GRÜSSE"
    assert examples.pixels(client, b"P6 2 1 255\n" + bytes([255, 0, 0, 0, 0, 255])) == [[[1, 0]], [[0, 0]], [[0, 1]]]


def test_a_model_s_error_has_its_own_status(examples: Any, client: http.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="expected a binary PPM") as caught:
        examples.pixels(client, b"GIF89a")
    assert caught.value.status() == "400"


def test_metrics_of_a_model_stand_beside_the_server_s(
    served: Served, examples: Any, client: http.InferenceServerClient
) -> None:
    def count() -> float:
        text = httpx.get(f"http://{served.metrics}/metrics").text
        return float(
            re.search(r'^upper_bytes_total\{model="self_describing",version="1"\} (\S+)$', text, re.MULTILINE)[1]
        )  # type: ignore[index]

    before = count()
    examples.upper(client, "12345")
    assert count() == before + 5


def test_a_killed_process_comes_back(served: Served, examples: Any, client: http.InferenceServerClient) -> None:
    for child in psutil.Process(served.process.pid).children():
        child.kill()
    for _ in range(100):
        try:
            assert examples.add(client, 1.0, 1.0) == [2.0] * 4
            break
        except InferenceServerException as error:
            assert "not healthy" in str(error)
    assert examples.upper(client, "a") == "A"


def test_a_stream_over_http_is_server_sent_events(served: Served) -> None:
    with httpx.stream(
        "POST", f"http://{served.http}/v2/models/square_stream/generate_stream", json={"COUNT": 3}, timeout=PATIENCE
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert [re.search(r'"SQUARE":(\d+)', line)[1] for line in lines] == ["0", "1", "4"]  # type: ignore[index]


def test_the_end_of_the_server_is_the_end_of_its_models() -> None:
    server = Served(ROOT / "examples" / "python_models")
    children = psutil.Process(server.process.pid).children()
    assert len(children) == NUM_INSTANCES
    server.process.kill()
    _, alive = psutil.wait_procs(children, PATIENCE)
    assert not alive
    server.process.wait()
    assert server.process.stderr is not None
    server.process.stderr.close()


def test_a_stop_finalizes_the_models_and_exits_with_0() -> None:
    server = Served(ROOT / "examples" / "python_models")
    assert server.stop() == 0, server.log
    assert server.process.stderr is not None
    server.process.stderr.close()
