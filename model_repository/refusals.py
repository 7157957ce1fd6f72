"""Why a model cannot be had, in Triton's words where it has them."""

from backends.api.errors import Code, ServingError
from model_repository.record import Record
from model_repository.states import State


def not_available(record: Record | None, name: str, version: str) -> ServingError:
    """Why `version` ("" for the newest) of a model has no live model: NOT_FOUND, or UNAVAILABLE where waiting may help."""
    if record is None or not record.states:
        return ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
    if version:
        return _version_not_available(record, version)
    if record.is_loading:
        return ServingError(Code.UNAVAILABLE, f"model '{name}' is not at ready state: it is loading", reason="loading")
    return ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions")


def _version_not_available(record: Record, version: str) -> ServingError:
    subject = f"Request for unknown model: '{record.name}' version {version}"
    state = record.states.get(version)
    if state is None:
        return ServingError(Code.NOT_FOUND, f"{subject} is not found")
    reason = "loading" if state.state is State.LOADING else None
    return ServingError(Code.UNAVAILABLE, f"{subject} is not at ready state", reason=reason)
