"""The one table from our error codes to HTTP and gRPC statuses.

Numbers are Triton's (triton spec 1.2), so that its clients and tests see what they know; where that departs from
what the code's name suggests, the row says why.
"""

import logging
import uuid
from itertools import accumulate

import grpc

from backends.api.errors import Code, ServingError

log = logging.getLogger(__name__)

_LONGEST_STATUS = 6000  # bytes on the wire; clients refuse trailing metadata of 16 KB, and some of it from 8 KB on
_CUT = "... cut"

_STATUSES: dict[Code, tuple[int, grpc.StatusCode]] = {
    Code.INVALID: (400, grpc.StatusCode.INVALID_ARGUMENT),
    Code.NOT_FOUND: (404, grpc.StatusCode.NOT_FOUND),
    Code.ALREADY_EXISTS: (400, grpc.StatusCode.ALREADY_EXISTS),  # Triton has no 409
    Code.UNAUTHENTICATED: (401, grpc.StatusCode.UNAUTHENTICATED),
    Code.FORBIDDEN: (403, grpc.StatusCode.PERMISSION_DENIED),
    Code.TOO_LARGE: (413, grpc.StatusCode.RESOURCE_EXHAUSTED),  # Triton: 400; proxies and clients know 413
    # A full queue and a passed queue time-out are UNAVAILABLE in Triton: its clients retry on that
    Code.OVERLOADED: (503, grpc.StatusCode.UNAVAILABLE),
    Code.UNAVAILABLE: (503, grpc.StatusCode.UNAVAILABLE),
    Code.DEADLINE: (503, grpc.StatusCode.DEADLINE_EXCEEDED),  # the caller's own
    Code.CANCELLED: (400, grpc.StatusCode.CANCELLED),  # nobody is left to read it
    Code.UNSUPPORTED: (501, grpc.StatusCode.UNIMPLEMENTED),
    Code.INTERNAL: (500, grpc.StatusCode.INTERNAL),
    Code.UNKNOWN: (400, grpc.StatusCode.UNKNOWN),  # a backend gave no kind: Triton does not call that its own fault
}


def http_status(code: Code) -> int:
    return _STATUSES[code][0]


def grpc_status(code: Code) -> grpc.StatusCode:
    return _STATUSES[code][1]


def grpc_details(error: ServingError) -> str:
    """The text of a gRPC status, cut where clients would refuse it for its length."""
    text = error.message
    if len(text) <= _LONGEST_STATUS // 12:  # each character is four bytes at most, of which each may travel as %XX
        return text
    sizes = accumulate(map(_size_in_status, text))
    kept = sum(size <= _LONGEST_STATUS for size in sizes)
    return text if kept == len(text) else text[:kept] + _CUT


def _size_in_status(character: str) -> int:
    is_plain = " " <= character <= "~" and character != "%"
    return 1 if is_plain else 3 * len(character.encode(errors="surrogatepass"))


def as_serving_error(error: BaseException) -> ServingError:
    """`error` itself. Any other is a bug: the log has its text and traceback, the caller is told the id to look for there."""
    if isinstance(error, ServingError):
        return error
    name = uuid.uuid4().hex
    log.error("request=%s failed", name, exc_info=error)
    return ServingError(Code.INTERNAL, f"an internal error occurred (request id {name})")
