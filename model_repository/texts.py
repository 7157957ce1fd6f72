"""The errors of loading and of a stopping server, in Triton's words where it has them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.api.errors import Code, ServingError
from model_repository import layout
from model_repository.states import reason_of


def stopping() -> ServingError:
    return ServingError(
        Code.UNAVAILABLE,
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        reason="stopping",
    )


def control_not_allowed() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled")


def unknown_to_load(name: str) -> ServingError:
    return ServingError(
        Code.INTERNAL, f"failed to load '{name}', failed to poll from model repository", reason="unknown_model"
    )


def unreadable(name: str, error: OSError) -> ServingError:
    return ServingError(Code.UNAVAILABLE, f"the files of model '{name}' cannot be read or written: {error.strerror}")


def no_versions(folder: Path) -> str:
    """For a model of which no version is to be served."""
    text = f"at least one version must be available under the version policy of model '{folder.name}'"
    if layout.version_folders(folder):
        return text
    if names := layout.misnamed_versions(folder):
        return f"{text}: a version folder is a number from 1 without leading zeros, got '{names[0]}'"
    return f"{text}: put the model into {folder.name}/1"


def not_unique(name: str, folders: Sequence[Path]) -> ServingError:
    places = ", ".join(str(folder.parent) for folder in folders)
    return ServingError(Code.INVALID, f"model '{name}' is not unique across all model repositories: {places}")


def ambiguous(name: str, count: int) -> ServingError:
    """For a name that stands for models of several repositories."""
    text = f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve ambiguity."
    return ServingError(Code.INVALID, text, reason="ambiguous_model")


def load_failed(name: str, cause: ServingError) -> ServingError:
    """The answer to a load whose model could not be read; that a model is unknown is said as it is."""
    if cause.reason == "unknown_model":
        return cause
    return ServingError(Code.INVALID, f"load failed for model '{name}': {cause.message}")


def versions_failed(name: str, causes: Mapping[str, ServingError]) -> ServingError:
    """The answer to a load of which these versions (version -> cause) did not come up."""
    lines = (f"version {version} is at UNAVAILABLE state: {reason_of(cause)};\n" for version, cause in causes.items())
    return ServingError(Code.INVALID, f"load failed for model '{name}': {''.join(lines)}")


def circular(ensemble: str, above: str) -> ServingError:
    """For an ensemble that is a step of its own step `above`, or its own."""
    way = [ensemble] if above == ensemble else [ensemble, "...", above]
    return ServingError(Code.INVALID, f"circular dependency between ensembles: {' -> '.join([*way, ensemble])}")


def step_failed(ensemble: str, step: str, cause: ServingError) -> ServingError:
    """For an ensemble whose step's model could not be loaded."""
    return ServingError(
        Code.INVALID,
        f"ensemble '{ensemble}' depends on '{step}' which has no loaded version. "
        f"Model '{step}' loading failed with error: {cause.message}",
    )
