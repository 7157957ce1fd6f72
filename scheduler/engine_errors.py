"""How an engine's step may fail."""

from backends.api.errors import Code, ServingError

MAX_FAILURES = 3
"""Failed steps in a row after which an engine gives up."""


class EngineBrokenError(Exception):
    """Steps fail again and again: the runner cannot be trusted, and its process should end."""


def as_serving_error(error: Exception) -> ServingError:
    """What the requests of a failed step are told."""
    if isinstance(error, ServingError):
        return error
    return ServingError(Code.INTERNAL, f"the engine failed in a step: {type(error).__name__}")
