"""Brings up a real Triton 2.51 (Python backend, CPU) out of PyPI's `nvidia-pytriton`, to compare answers with.

It is built once, in the folder of the environment variable TIDEGATE_ORACLE or in the user's cache.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.oracle.triton_models import write_repository

_WHEEL = "nvidia-pytriton==0.7.0"
_START_S = 60.0
ALL_MODELS = {
    "model_control_mode": "explicit",
    "load_model": "*",
    "exit_on_error": "false",
    "strict_readiness": "false",
}


class TritonUnavailableError(Exception):
    """Why no Triton can be started here."""


class Addresses(NamedTuple):
    """`host:port` of each."""

    http: str
    grpc: str
    metrics: str


@contextmanager
def triton_server(
    folder: Path, repository: Path | None = None, flags: Mapping[str, str] = ALL_MODELS, **more: str
) -> Iterator[Addresses]:
    """A running Triton with the models of `repository`, else of `triton_models`.

    `folder` holds its log; `flags` and `more` are written with `_` for `-`. Raises TritonUnavailableError.
    """
    home = _built(Path(os.environ.get("TIDEGATE_ORACLE") or Path.home() / ".cache" / "tidegate-oracle"))
    repository = repository or write_repository(folder / "models")
    ports = [_free_port() for _ in range(3)]
    server = home / "pt" / "pytriton" / "tritonserver"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(home / "pt" / "nvidia_pytriton.libs"),
        "PATH": f"{home / 'oracle' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(next((home / "oracle" / "lib").glob("python3.*")) / "site-packages"),
    }
    own = {
        "backend-directory": server / "backends",
        "model-repository": repository,
        "http-address": "127.0.0.1",
        "grpc-address": "127.0.0.1",
        "http-port": ports[0],
        "grpc-port": ports[1],
        "metrics-address": "127.0.0.1",
        "metrics-port": ports[2],
    }
    command = [str(server / "bin" / "tritonserver"), *as_arguments({**own, **flags, **more})]
    with (folder / "triton.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, ports[0])
            yield Addresses(*(f"127.0.0.1:{port}" for port in ports))
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def as_arguments(flags: Mapping[str, object]) -> list[str]:
    """For the command line of either server."""
    return [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]


def _built(home: Path) -> Path:
    """`home` with the server unpacked and a Python that has the numpy its stub wants."""
    if (home / "complete").exists():
        return home
    try:
        home.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "venv", str(home / "oracle"))
        _run(str(home / "oracle" / "bin" / "pip"), "install", "-q", "numpy<2")
        _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", _WHEEL, "-d", str(home))
        with zipfile.ZipFile(next(home.glob("nvidia_pytriton-*.whl"))) as wheel:
            wheel.extractall(home / "pt")
        server = home / "pt" / "pytriton" / "tritonserver"
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = server / "backends" / "python" / "triton_python_backend_stub"
        shutil.copy(server / "python_backend_stubs" / minor / stub.name, stub)
        for program in (stub, server / "bin" / "tritonserver"):
            program.chmod(0o755)
        (home / "complete").touch()
    except (OSError, StopIteration, subprocess.CalledProcessError, zipfile.BadZipFile) as error:
        raise TritonUnavailableError(f"{_WHEEL} could not be unpacked: {error}") from error
    return home


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise TritonUnavailableError(f"tritonserver ended with {process.returncode}")
        try:
            # it listens once every model has been loaded or has failed
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TritonUnavailableError(f"tritonserver was not ready after {_START_S} s")
