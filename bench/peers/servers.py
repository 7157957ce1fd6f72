"""Starts the servers that are compared, each with the same models, and stops them."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.in_process import identity_model
from tests.oracle.triton_server import triton_server

MODELS = ("identity", "identity_batched")
_START_S = 60.0
# FP32 [N, 16] back as it came; Triton from PyPI has no ONNX Runtime, so there it is a Python model
_CONFIG = """
backend: "{backend}"
max_batch_size: 64
input {{ name: "x" data_type: TYPE_FP32 dims: [ 16 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ 16 ] }}
instance_group {{ kind: KIND_CPU count: 1 }}
"""
_BATCHING = "dynamic_batching { max_queue_delay_microseconds: 500 }\n"
_PYTHON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy())]
            )
            for request in requests
        ]
"""


class PeerUnavailableError(Exception):
    """Why a server could not be started."""


def write_models(folder: Path, backend: str) -> Path:
    """A repository of `MODELS`: the same model without and with dynamic batching (500 µs)."""
    for name in MODELS:
        version = folder / name / "1"
        version.mkdir(parents=True)
        config = _CONFIG.format(backend=backend) + (_BATCHING if name == MODELS[1] else "")
        (folder / name / "config.pbtxt").write_text(config)
        if backend == "python":
            (version / "model.py").write_text(_PYTHON)
        else:
            (version / "model.onnx").write_bytes(identity_model().SerializeToString())
    return folder


@contextmanager
def triton(folder: Path) -> Iterator[tuple[str, str]]:
    """A real Triton with the models; its HTTP and gRPC addresses. Raises TritonUnavailableError."""
    with triton_server(folder, write_models(folder / "models", "python")) as (http, grpc, _):
        yield http, grpc


@contextmanager
def tidegate(folder: Path, root: Path, models: Path | None = None) -> Iterator[tuple[str, str]]:
    """The checkout at `root` serving `models`, else the same as the others; its HTTP and gRPC addresses.

    `folder` holds its log. Raises PeerUnavailableError.
    """
    repository = models or write_models(folder / "models", "onnxruntime")
    http, grpc = _free_port(), _free_port()
    flags = ["--http-port", str(http), "--grpc-port", str(grpc), "--allow-metrics", "false"]
    command = [sys.executable, "-m", "gateway", "serve", "--model-repository", str(repository), *flags]
    with (folder / "tidegate.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=root, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, http)
            yield f"127.0.0.1:{http}", f"127.0.0.1:{grpc}"
        finally:
            process.terminate()
            process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerUnavailableError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise PeerUnavailableError(f"the server was not ready after {_START_S} s")
