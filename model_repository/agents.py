"""Repository agents: what a model's configuration asks to be done with its files before a load.

The one there is, `checksum`, compares files with the MD5 sums that its parameters name: `MD5:1/model.onnx` -> sum.
"""

from hashlib import md5
from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.api.model_config import Accelerator, ModelConfig
from model_repository.layout import check_inside

_CHECKSUM = "checksum"
_ALGORITHM = "MD5:"


def run_agents(config: ModelConfig, folder: Path) -> None:
    """Reads the files. Raises ServingError: INVALID for one that is not what it should be, UNSUPPORTED for other agents."""
    for agent in config.repository_agents:
        if agent.name != _CHECKSUM:
            raise ServingError(
                Code.UNSUPPORTED,
                f"unknown repository agent '{agent.name}' for {config.name}, this server has: {_CHECKSUM}",
                param="model_repository_agents",
            )
        _check_sums(agent, folder)


def _check_sums(agent: Accelerator, folder: Path) -> None:
    for key, expected in agent.parameters.items():
        if not key.startswith(_ALGORITHM):
            raise _fault(f"unsupported checksum '{key}', expected MD5:FILE")
        name = key.removeprefix(_ALGORITHM)
        check_inside(name, f"checksum file '{name}'")
        try:
            found = md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()
        except OSError as error:
            raise _fault(f"checksum file '{name}' cannot be read: {error.strerror}") from error
        if found != expected.lower():
            raise _fault(f"Mismatched MD5 hash for file {name}, expect: {expected}, got: {found}")


def _fault(text: str) -> ServingError:
    return ServingError(Code.INVALID, text, param="model_repository_agents")
