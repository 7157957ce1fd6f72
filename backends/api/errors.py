"""The one error that crosses layers, and its closed set of codes.

No HTTP status, gRPC code or OpenAI type stands below the fronts: `gateway/errors.py` and
`openai_api/errors.py` each map these codes in one table.
"""

from enum import Enum


class Code(Enum):
    INVALID = "invalid"  # the caller's fault: retrying changes nothing
    NOT_FOUND = "not_found"  # no such model, version, region, route
    ALREADY_EXISTS = "already_exists"  # a name that is taken
    UNAUTHENTICATED = "unauthenticated"  # no key, or a wrong one
    FORBIDDEN = "forbidden"  # a right key that may not do this
    TOO_LARGE = "too_large"  # a body or batch over a configured limit
    OVERLOADED = "overloaded"  # a queue or rate limit is full: retry later
    UNAVAILABLE = "unavailable"  # loading, unloading, draining or restarting: retry later
    DEADLINE = "deadline"  # the time the request was given has passed
    CANCELLED = "cancelled"  # the caller left
    UNSUPPORTED = "unsupported"  # understood, but not offered here
    INTERNAL = "internal"  # our fault, or the backend's
    UNKNOWN = "unknown"  # a backend reported an error without a kind


class ServingError(Exception):
    """A request or a load that failed, for a reason fit to show to the caller.

    `message` says what was expected, what came and where. `param` is the path of the field at
    fault (`messages[2].content`), `reason` a stable word for programs (`context_length_exceeded`),
    `retry_after` the seconds after which another try is sensible.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        reason: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.reason = reason
        self.retry_after = retry_after

    def __repr__(self) -> str:
        return f"ServingError({self.code.name}, {self.message!r})"
