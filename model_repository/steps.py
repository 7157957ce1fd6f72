"""What an ensemble on disk needs of the models beside it: that they are there, and that none needs the ensemble."""

from collections.abc import Iterator
from pathlib import Path

from backends.api.errors import ServingError
from backends.api.model_config import EnsembleStep, ModelConfig
from model_repository import layout
from model_repository.pbtxt import parse_text
from model_repository.problem import Problem


def step_problems(config: ModelConfig, repository: Path) -> Iterator[Problem]:
    """Of the steps of `config`, an ensemble or not, that name no other repository. Reads the disk."""
    for index, step in enumerate(_steps(config)):
        path = f"ensemble_scheduling.step[{index}]"
        if not (repository / step.model_name).is_dir():
            text = f"ensemble '{config.name}' needs model '{step.model_name}', which is not in this repository"
            yield Problem(f"{path}.model_name", text)
        elif config.name in _needed(step.model_name, repository):
            yield Problem(f"{path}.model_name", _circular(config.name, step.model_name))


def _circular(ensemble: str, step: str) -> str:
    fault = "needs itself" if step == ensemble else f"needs '{ensemble}', of which it is a step"
    return f"circular dependency between ensembles: '{step}' {fault}"


def _needed(name: str, repository: Path) -> set[str]:
    """The model itself and all it needs, directly or not."""
    found, waiting = set[str](), [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [step.model_name for step in _steps(_config(repository / name))]
    return found


def _config(folder: Path) -> ModelConfig:
    """As far as it can be read: what is wrong with it is told where it is its turn."""
    file = layout.config_file(folder)
    try:
        return parse_text(file.read_bytes(), file.name) if file is not None else ModelConfig(folder.name)
    except (OSError, ServingError):
        return ModelConfig(folder.name)


def _steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    steps = config.ensemble.steps if config.ensemble is not None else ()
    return tuple(step for step in steps if step.model_name and not step.model_namespace)
