"""Errors that no endpoint of ours has answered: unknown paths outside /v1 and /v2, and bugs. Never a traceback."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from backends.api.errors import Code, ServingError
from openai_api.errors import error_body
from openai_api.http import request_id

log = logging.getLogger(__name__)
Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]


async def refused(request: Request, exception: Exception) -> Response:
    """What the router refuses: there is no such path, or not with this method."""
    assert isinstance(exception, HTTPException)
    what = f"{request.method[:20]} {request.url.path[:200]}"
    if exception.status_code == 405:
        error = ServingError(Code.INVALID, f"the method is not allowed: {what}", reason="method_not_allowed")
    else:
        error = ServingError(Code.NOT_FOUND, f"there is no endpoint {what}", reason="unknown_url")
    return _answer(request, error, exception.status_code, dict(exception.headers or {}))


async def failed(request: Request, exception: Exception) -> Response:
    """A bug. The log has the exception, under the id that the client is told."""
    name = request_id(request.scope)
    log.error("request=%s path=%s failed", name, request.url.path, exc_info=exception)
    error = ServingError(Code.INTERNAL, f"an internal error occurred (request id {name})")
    return _answer(request, error, 500, {"x-should-retry": "false", "x-request-id": name})


def _answer(request: Request, error: ServingError, status: int, headers: dict[str, str]) -> Response:
    headers.setdefault("x-request-id", request_id(request.scope))
    return Response(error_body(error), status, headers, "application/json")


HANDLERS: dict[int | type[Exception], Handler] = {HTTPException: refused, Exception: failed}
