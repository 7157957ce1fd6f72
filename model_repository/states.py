"""The states a model's version goes through, as the repository index shows them.

    UNKNOWN -> LOADING -> READY -> UNLOADING -> UNAVAILABLE
                       -> UNAVAILABLE (with the reason)      a further load starts at LOADING again

A reload leaves READY standing until its own versions are ready.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from backends.api.errors import Code, ServingError

log = logging.getLogger(__name__)

UNLOADED = "unloaded"  # the reason of a version that was taken down on purpose


class State(Enum):
    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class VersionState:
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A row of the index; `state` is a State's name. A model that was never loaded has no version and no state.

    A load that failed before its versions were known has version "" too, with state and reason. A READY
    version with a reason is one whose reload failed.
    """

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


OnChange = Callable[[str, str, State, str], None]
"""Called on the event loop with model, version, state and reason, after the change. Must not raise."""

_STATUS_WORDS = {
    Code.INVALID: "Invalid argument",
    Code.NOT_FOUND: "Not found",
    Code.ALREADY_EXISTS: "Already exists",
    Code.UNAVAILABLE: "Unavailable",
    Code.UNSUPPORTED: "Unsupported",
}


def reason_of(error: ServingError) -> str:
    """An error as the index gives it: Triton's word for its kind, then its text."""
    return f"{_STATUS_WORDS.get(error.code, 'Internal')}: {error.message}"


def log_change(name: str, version: str, state: State, reason: str) -> None:
    """The default `OnChange`: one line a change."""
    level = logging.WARNING if state is State.UNAVAILABLE and reason != UNLOADED else logging.INFO
    log.log(level, "model '%s' version %s: %s%s", name, version or "-", state.value, f" ({reason})" if reason else "")
