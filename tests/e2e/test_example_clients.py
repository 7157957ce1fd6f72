"""The example clients, run as a newcomer runs them: before the server is there."""

import subprocess
import sys
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
NOWHERE = "127.0.0.1:1"
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("chat", ["--url", f"http://{NOWHERE}/v1"]),
        ("classify", ["--grpc", NOWHERE]),
        ("python_models", ["--http", NOWHERE, "--grpc", NOWHERE]),
        ("pipelines", ["--http", NOWHERE, "--grpc", NOWHERE]),
    ],
)
def test_without_a_server_a_client_says_so_in_a_line(name: str, address: list[str]) -> None:
    if name == "pipelines":
        pytest.importorskip("PIL", reason="`make test` installs what the pipelines need")
    run = subprocess.run([sys.executable, CLIENTS / f"{name}.py", *address], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert NOWHERE in run.stderr
    assert "Traceback" not in run.stderr
