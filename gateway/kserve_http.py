"""KServe v2 over HTTP: every path of triton spec 1.1 but the hot one, whose work is in `kserve_http_infer`."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from backends.api.errors import ServingError
from gateway import kserve_http_control as control
from gateway.errors import as_serving_error, http_status
from gateway.http_body import Receive, Scope, Send, error_body, error_headers
from gateway.kserve_http_generate import generate, generate_stream
from gateway.kserve_http_infer import infer
from gateway.kserve_service import Service, check_restriction
from gateway.kserve_views import (
    EXTENSIONS,
    index_entry,
    model_metadata,
    model_statistics,
    models_for_statistics,
)
from openai_api.http import ClientGoneError

Handler = Callable[[Service, Request], Awaitable[Response]]
_MODEL = "/v2/models/{model}"
_VERSION = "/v2/models/{model}/versions/{version:version}"


class _VersionConvertor(Convertor[str]):
    """Digits of any number; starlette's own reads at most 4,300 of them."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return value.lstrip("0") or "0"

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("version", _VersionConvertor())


def routes(service: Service) -> list[BaseRoute]:
    """All routes under /v2, the last of which answers what no other takes."""
    router = APIRouter(tags=["KServe v2"])

    def add(method: str, path: str, category: str, handler: Handler, summary: str) -> None:
        endpoint = partial(_guarded, service, category, handler)
        router.add_api_route(
            path,
            _named(endpoint),
            methods=[method],
            summary=summary,
            response_class=Response,
            openapi_extra={"parameters": _path_parameters(path)},
        )

    add("GET", "/v2", "metadata", server_metadata, "Name, version and extensions of this server")
    add("GET", "/v2/health/live", "health", server_live, "Is the process able to answer")
    add("GET", "/v2/health/ready", "health", server_ready, "Are the models ready")
    add("GET", "/v2/models/stats", "statistics", statistics, "Statistics of all models")
    for prefix in (_VERSION, _MODEL):
        add("GET", prefix, "metadata", metadata, "A model's inputs and outputs")
        add("GET", prefix + "/ready", "health", ready, "Is the model ready")
        add("GET", prefix + "/config", "model-config", config, "A model's configuration")
        add("GET", prefix + "/stats", "statistics", statistics, "A model's statistics")
        add("POST", prefix + "/infer", "inference", infer_route, "Run a model on tensors")
        add("POST", prefix + "/generate", "inference", generate_route, "Run a model on a JSON object")
        add("POST", prefix + "/generate_stream", "inference", generate_stream_route, "The same, answers as events")
    for path in ("/v2/repository/index", "/v2/repository/{repository}/index"):
        add("POST", path, "model-repository", index, "The models of the repository and their states")
    for prefix in ("/v2/repository", "/v2/repository/{repository}"):
        add("POST", prefix + "/models/{model}/load", "model-repository", control.load, "Load or reload a model")
        add("POST", prefix + "/models/{model}/unload", "model-repository", control.unload, "Unload a model")
    for kind in ("system", "cuda"):
        _add_shared_memory(add, kind)
    for path in ("/v2/trace/setting", _MODEL + "/trace/setting"):
        add("GET", path, "trace", control.trace, "Trace settings")
        add("POST", path, "trace", control.trace, "Change trace settings")
    add("GET", "/v2/logging", "logging", control.log_settings, "Log settings")
    add("POST", "/v2/logging", "logging", control.log_settings, "Change log settings")
    known = list(router.routes)
    router.add_api_route(
        "/v2{rest:path}",
        _named(partial(_unknown, known)),
        methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
        include_in_schema=False,
    )
    return list(router.routes)


def _add_shared_memory(add: Callable[[str, str, str, Handler, str], None], kind: str) -> None:
    prefix = f"/v2/{kind}sharedmemory"
    for path in ("", "/region/{region}"):
        add("GET", prefix + path + "/status", "shared-memory", control.region_status, f"Registered {kind} regions")
        add("POST", prefix + path + "/unregister", "shared-memory", control.unregister, f"Forget {kind} regions")
    add("POST", prefix + "/region/{region}/register", "shared-memory", control.register, f"Register a {kind} region")


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part.strip("{}").partition(":") for part in path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if kind == "version" else "string"}}
        for name, _, kind in names
    ]


def _named(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A plain function around `endpoint`, which FastAPI reads the signature of."""

    async def handle(request: Request) -> Response:
        return await endpoint(request)

    return handle


async def _guarded(service: Service, category: str, handler: Handler, request: Request) -> Response:
    """`handler`'s answer, or its error as a document; a bug is logged and told without its traceback."""
    try:
        check_restriction(service, category, dict(request.scope["headers"]))
        return await handler(service, request)
    except ClientGoneError:
        return Response(status_code=400)
    except Exception as error:
        return _error_response(as_serving_error(error))


def _error_response(error: ServingError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_body(error), http_status(error.code), headers, "application/json")


async def _unknown(known: list[BaseRoute], request: Request) -> Response:
    """405 for a path of ours with another method, else 404."""
    is_ours = any(route.matches(request.scope)[0] is Match.PARTIAL for route in known)
    text = "Method Not Allowed" if is_ours else "Not Found"
    return Response(orjson.dumps({"error": text}), 405 if is_ours else 404, media_type="application/json")


class AppResponse(Response):
    """An answer that an ASGI function gives itself."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


def _target(request: Request) -> tuple[str, str]:
    return request.path_params["model"], request.path_params.get("version", "")


async def infer_route(service: Service, request: Request) -> Response:
    return AppResponse(partial(infer, service, *_target(request)))


async def generate_route(service: Service, request: Request) -> Response:
    return AppResponse(partial(generate, service, *_target(request)))


async def generate_stream_route(service: Service, request: Request) -> Response:
    return AppResponse(partial(generate_stream, service, *_target(request)))


async def server_metadata(service: Service, request: Request) -> Response:
    return control.document({"name": service.server_name, "version": service.server_version, "extensions": EXTENSIONS})


async def server_live(service: Service, request: Request) -> Response:
    return Response(status_code=200)


async def server_ready(service: Service, request: Request) -> Response:
    return Response(status_code=200 if service.is_server_ready() else 503)


async def metadata(service: Service, request: Request) -> Response:
    name, version = _target(request)
    model = service.repository.find(name, version)
    return control.document(model_metadata(model, [version] if version else service.repository.versions(name)))


async def ready(service: Service, request: Request) -> Response:
    if await service.repository.check_ready(*_target(request)):
        return Response(status_code=200)
    return Response(orjson.dumps({"error": "Model version not ready"}), 400, media_type="application/json")


async def config(service: Service, request: Request) -> Response:
    return control.document(service.config_to_json(service.repository.find(*_target(request)).config))


async def statistics(service: Service, request: Request) -> Response:
    name, version = _target(request) if "model" in request.path_params else ("", "")
    models = models_for_statistics(service.repository, name, version)
    return control.document({"model_stats": [model_statistics(model) for model in models]})


async def index(service: Service, request: Request) -> Response:
    wanted = await control.json_object(service, request)
    ready_only = wanted.get("ready", False)
    if not isinstance(ready_only, bool):
        raise control.wrong_member("ready", "non-boolean as boolean")
    entries = await asyncio.to_thread(service.repository.index, ready_only)
    return control.document([index_entry(entry) for entry in entries])
