"""Health, version and metrics under the paths that load balancers, guidellm and vLLM users look for."""

from collections.abc import Callable

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route


def routes(is_ready: Callable[[], bool], version: str) -> list[BaseRoute]:
    """Unauthenticated and answered from memory, so that a probe gets its answer under full load."""

    async def ready(request: Request) -> Response:
        return Response(status_code=200 if is_ready() else 503)

    async def live(request: Request) -> Response:
        return Response(status_code=200)  # being able to say so is what liveness means

    async def ping(request: Request) -> Response:
        return Response(status_code=200)

    async def show_version(request: Request) -> Response:
        return Response(orjson.dumps({"version": version}), media_type="application/json")

    return [
        Route("/health", ready),
        Route("/v1/health", ready),
        Route("/health/ready", ready),
        Route("/health/live", live),
        Route("/ping", ping, methods=["GET", "POST"]),
        Route("/version", show_version),
    ]
