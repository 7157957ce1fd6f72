"""ServingError -> the OpenAI error answer: status, type and code in one table, and the hint when to try again."""

import random
from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from backends.api.errors import Code, ServingError
from openai_api.ascii_json import ascii_json

MAX_MESSAGE = 1024  # characters: an answer never grows with the input that caused it
MAX_RETRY_AFTER = 30.0  # seconds: SDKs give up on waits they find too long
DEFAULT_RETRY_AFTER = 1.0
_TOLD_BY_MESSAGE = "context_length_exceeded"  # LangChain looks for it in what the SDK shows, which is the message alone


class Wire(NamedTuple):
    """How an error looks outside. Where the caller is at fault, the error's `reason` stands for `code`."""

    status: int
    type: str
    code: str | None


_BY_CODE: Mapping[Code, Wire] = {
    Code.INVALID: Wire(400, "invalid_request_error", None),
    Code.NOT_FOUND: Wire(404, "invalid_request_error", "not_found"),
    Code.ALREADY_EXISTS: Wire(409, "invalid_request_error", "already_exists"),
    Code.UNAUTHENTICATED: Wire(401, "invalid_request_error", "invalid_api_key"),
    Code.FORBIDDEN: Wire(403, "permission_error", "permission_denied"),
    Code.TOO_LARGE: Wire(413, "invalid_request_error", "request_too_large"),
    Code.OVERLOADED: Wire(503, "server_error", "overloaded"),
    Code.UNAVAILABLE: Wire(503, "server_error", "model_not_ready"),
    Code.DEADLINE: Wire(408, "timeout_error", "timeout"),
    Code.CANCELLED: Wire(499, "invalid_request_error", "cancelled"),
    Code.UNSUPPORTED: Wire(400, "invalid_request_error", "unsupported_parameter"),
    Code.INTERNAL: Wire(500, "server_error", "internal_error"),
    Code.UNKNOWN: Wire(500, "server_error", "internal_error"),
}
# reasons that change more than the `code` member, and those of the layers below that clients can act on
_BY_REASON: Mapping[str | None, Wire] = {
    "rate_limit_exceeded": Wire(429, "rate_limit_error", "rate_limit_exceeded"),
    "method_not_allowed": Wire(405, "invalid_request_error", "method_not_allowed"),
    "loading": Wire(503, "server_error", "model_loading"),
    "stopping": Wire(503, "server_error", "shutting_down"),
    "shutting_down": Wire(503, "server_error", "shutting_down"),
}
# types whose `code` is one of the table's few: why the server is in trouble is for its log
_NOT_THE_CALLERS = frozenset({"server_error", "timeout_error"})


def wire_error(error: ServingError) -> Wire:
    if error.reason in _BY_REASON:
        return _BY_REASON[error.reason]
    wire = _BY_CODE[error.code]
    return wire if error.reason is None or wire.type in _NOT_THE_CALLERS else wire._replace(code=error.reason)


def error_object(error: ServingError) -> dict[str, str | None]:
    """The members that tell a client what went wrong: `message`, `type`, `param`, `code`."""
    wire = wire_error(error)
    message = error.message if len(error.message) <= MAX_MESSAGE else error.message[: MAX_MESSAGE - 3] + "..."
    if wire.code == _TOLD_BY_MESSAGE:
        message = f"{message} ({wire.code})"
    return {"message": message, "type": wire.type, "param": error.param, "code": wire.code}


def error_body(error: ServingError) -> bytes:
    """`{"error": {message, type, param, code}}` as one line of ASCII, fit for a body and for an event."""
    return ascii_json({"error": error_object(error)})


def error_headers(error: ServingError, spread: float | None = None) -> list[tuple[bytes, bytes]]:
    """Headers that tell a client when another try makes sense.

    The wait is up to half longer than asked, by `spread` in [0, 1) (drawn when None), so that refused
    clients do not come back together.
    """
    status = wire_error(error).status
    if status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if status not in (429, 503):
        return []
    wait = min(error.retry_after or DEFAULT_RETRY_AFTER, MAX_RETRY_AFTER / 1.5)
    wait *= 1 + 0.5 * (random.random() if spread is None else spread)
    return [(b"retry-after", str(ceil(wait)).encode()), (b"retry-after-ms", str(round(wait * 1000)).encode())]


def invalid(reason: str, param: str | None, message: str) -> ServingError:
    """A request that is wrong at `param`; `reason` is OpenAI's word for how."""
    return ServingError(Code.INVALID, message, param=param, reason=reason)


def unsupported(param: str, message: str, reason: str = "unsupported_parameter") -> ServingError:
    """A meaning we understand and do not offer: refused, never ignored."""
    return ServingError(Code.UNSUPPORTED, message, param=param, reason=reason)


def shutting_down() -> ServingError:
    return ServingError(Code.UNAVAILABLE, "the server is shutting down", reason="shutting_down", retry_after=5.0)
