"""Schemathesis on the routes that a running server documents at /openapi.json: `make fuzz` runs it.

python -m tests.fuzz.openapi SCHEMATHESIS
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.server_process import START, ServerProcess, eventually
from tests.oracle.triton_models import write_repository

# where the protocol's table has a 5xx: loads of what is not there, and repositories named in the path
TABLED = r"/load$|/repository/\{repository\}/"


def main() -> int:
    """schemathesis' exit code."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--model-control-mode=explicit", "--load-model=ident", "--allow-client-shm=true")
        server = ServerProcess(write_repository(Path(folder) / "models"), *flags)
        try:
            assert eventually(server.is_ready, START)
            command = [sys.argv[1], "run", f"{server.url}/openapi.json", "--checks", "not_a_server_error"]
            return subprocess.call([*command, "--exclude-path-regex", TABLED, "--max-examples", "100"])
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
