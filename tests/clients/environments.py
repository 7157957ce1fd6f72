"""A client's own environment, built once: a virtual environment, or a folder with node_modules."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / "build" / "clients"


@dataclass(frozen=True)
class Client:
    """`script` is run in an environment with what `needs` (a file of requirements/ or packages/) lists."""

    name: str
    script: str
    needs: str
    is_suite: bool = False  # brings its own tests, so that its checks have names of their own

    @property
    def is_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def listed(self) -> str:
        return (HERE / ("packages" if self.is_node else "requirements") / self.needs).read_text()

    @property
    def folder(self) -> Path:
        return CACHE / Path(self.needs).stem


def command_of(client: Client) -> list[str]:
    """What runs the client's script. Builds its environment when it is missing or out of date.

    Raises CalledProcessError, with what the installer said.
    """
    stamp = client.folder / "installed"
    if not stamp.exists() or stamp.read_text() != client.listed:
        client.folder.mkdir(parents=True, exist_ok=True)
        (_install_node if client.is_node else _install_python)(client)
        stamp.write_text(client.listed)
    if not client.is_node:
        return [str(client.folder / "env" / "bin" / "python"), str(HERE / client.script)]
    for name in ("checks.mjs", client.script):  # node looks for modules beside the script
        shutil.copy(HERE / name, client.folder)
    return ["node", str(client.folder / client.script)]


def _install_python(client: Client) -> None:
    environment = client.folder / "env"
    _run([sys.executable, "-m", "venv", str(environment)])
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    _run([*pip, "-r", str(HERE / "requirements" / client.needs)])


def _install_node(client: Client) -> None:
    shutil.copy(HERE / "packages" / client.needs, client.folder / "package.json")
    _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(client.folder)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
