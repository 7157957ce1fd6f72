"""The Python that a custom model runs in: the server's own, or an environment that the model brings."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from backends.api.errors import Code, ServingError

_VARIABLE = "$$TRITON_MODEL_DIRECTORY"  # in EXECUTION_ENV_PATH: the model's folder
_ARCHIVES = (".tar.gz", ".tgz", ".tar")


class Environments:
    """Unpacks and builds environments into `cache`, each once. `allow_requirements`: whether models may have packages installed."""

    def __init__(self, cache: Path | None = None, *, allow_requirements: bool = False) -> None:
        self._cache = cache or Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}" / "environments"
        self._allow_requirements = allow_requirements

    def python_for(self, model: str, folder: Path, execution_env_path: str) -> str:
        """The interpreter for the model whose version folder is `folder`.

        Raises ServingError(INVALID) for an environment that cannot be used, FORBIDDEN for a requirements.txt that is
        not allowed.
        """
        requirements = next((path for path in _requirements(folder) if path.is_file()), None)
        if requirements is not None and not self._allow_requirements:
            raise ServingError(
                Code.FORBIDDEN,
                f"model '{model}' has a {requirements.name}, and installing packages for models is off: start the "
                "server with --allow-model-requirements, or give the model an EXECUTION_ENV_PATH",
            )
        python = sys.executable
        if execution_env_path:
            python = self._from_path(model, folder, execution_env_path)
        return python if requirements is None else self._with_requirements(model, python, requirements)

    def _from_path(self, model: str, folder: Path, text: str) -> str:
        path = Path(text.replace(_VARIABLE, str(folder.parent)))
        if not path.is_absolute():
            path = folder.parent / path
        if path.name.endswith(_ARCHIVES) and path.is_file():
            path = self._unpacked(model, path)
        for name in ("bin/python3", "bin/python"):
            if (path / name).exists():
                return str(path / name)
        raise ServingError(
            Code.INVALID,
            f"model '{model}': EXECUTION_ENV_PATH '{text}': expected an environment's folder or packed archive with "
            f"bin/python in it, found none at {path}",
        )

    def _unpacked(self, model: str, archive: Path) -> Path:
        state = archive.stat()
        key = hashlib.sha256(f"{archive}:{state.st_mtime_ns}:{state.st_size}".encode()).hexdigest()[:24]
        return self._made(model, key, lambda target: _unpack(archive, target))

    def _with_requirements(self, model: str, python: str, requirements: Path) -> str:
        key = hashlib.sha256(python.encode() + b"\0" + requirements.read_bytes()).hexdigest()[:24]
        return str(self._made(model, key, lambda target: _build(python, requirements, target)) / "bin" / "python")

    def _made(self, model: str, key: str, make: Callable[[Path], None]) -> Path:
        """The folder of this key, made elsewhere and moved, so that half an environment is never used."""
        target = self._cache / key
        if target.is_dir():
            return target
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            made = Path(scratch) / "environment"
            try:
                make(made)
                made.rename(target)
            except OSError as error:
                if target.is_dir():  # another load was quicker
                    return target
                raise ServingError(Code.INVALID, f"model '{model}': its environment cannot be made: {error}") from None
            except (tarfile.TarError, subprocess.CalledProcessError) as error:
                output = getattr(error, "output", None) or b""
                reason = output.decode(errors="replace").strip()[-2000:] or str(error)
                raise ServingError(Code.INVALID, f"model '{model}': its environment cannot be made: {reason}") from None
        return target


def _requirements(folder: Path) -> tuple[Path, Path]:
    return folder / "requirements.txt", folder.parent / "requirements.txt"


def _unpack(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="tar")  # links out of the folder are how environments name their interpreter
    unpack = target / "bin" / "conda-unpack"
    if unpack.is_file():
        subprocess.run([str(unpack)], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _build(python: str, requirements: Path, target: Path) -> None:
    for command in (
        [python, "-m", "venv", "--system-site-packages", str(target)],
        [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(requirements)],
    ):
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
