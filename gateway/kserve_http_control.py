"""Handlers that change the server: load and unload, shared memory, trace and log settings (triton spec 1.7 to 1.9)."""

import base64
import binascii
from dataclasses import asdict
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from backends.api.errors import Code, ServingError
from gateway.http_body import read_body
from gateway.kserve_json_faults import parse_document
from gateway.kserve_service import Service
from gateway.shared_memory import decode_cuda_handle


def document(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _empty() -> Response:
    return Response(media_type="application/json")


async def json_object(service: Service, request: Request) -> dict[str, Any]:
    """The body's JSON object, {} for an empty body. Raises ServingError(INVALID)."""
    body = await read_body(request.receive, dict(request.scope["headers"]), service.max_body_bytes)
    if not body:
        return {}
    value = parse_document(body)
    if not isinstance(value, dict):
        raise ServingError(Code.INVALID, "failed to parse the request JSON buffer: expected an object")
    return value


def wrong_member(name: str, complaint: str) -> ServingError:
    return ServingError(Code.INVALID, f"'{name}': attempt to access JSON {complaint}", param=name)


def _member(fields: dict[str, Any], name: str, kind: type, complaint: str, default: Any = None) -> Any:
    value = fields.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise wrong_member(name, complaint)
    return value


async def _parameters(service: Service, request: Request) -> dict[str, Any]:
    if "repository" in request.path_params:
        raise ServingError(Code.UNSUPPORTED, "'repository_name' specification is not supported")
    fields = await json_object(service, request)
    parameters: dict[str, Any] = _member(fields, "parameters", dict, "non-object as object", {})
    return parameters


async def load(service: Service, request: Request) -> Response:
    config, files = load_parameters(await _parameters(service, request))
    await service.repository.load(request.path_params["model"], config, files or None)
    return _empty()


def load_parameters(parameters: dict[str, Any]) -> tuple[str | None, dict[str, bytes]]:
    """(override config, `file:` contents by path) of a load request. Raises ServingError(INVALID)."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, value in parameters.items():
        if name != "config" and not name.startswith("file:"):
            raise unknown_load_parameter(name)
        if not isinstance(value, str):
            raise wrong_member(name, "non-string as string")
        if name == "config":
            config = value
        else:
            files[name] = _file_content(name, value)
    return config, files


def unknown_load_parameter(name: str) -> ServingError:
    return ServingError(Code.INVALID, f"unrecognized load parameter '{name}'.", param=name)


def _file_content(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ServingError(Code.INVALID, f"load parameter '{name}': expected base64 content", param=name) from None


async def unload(service: Service, request: Request) -> Response:
    parameters = await _parameters(service, request)
    dependents = _member(parameters, "unload_dependents", bool, "non-boolean as boolean", False)
    await service.repository.unload(request.path_params["model"], dependents)
    return _empty()


def _is_cuda(request: Request) -> bool:
    return request.url.path.startswith("/v2/cuda")


async def region_status(service: Service, request: Request) -> Response:
    name = request.path_params.get("region")
    if _is_cuda(request):
        return document(service.cuda_memory.status(name))
    regions = service.system_memory.status(name)
    return document(
        [{"name": item.name, "key": item.key, "offset": item.offset, "byte_size": item.byte_size} for item in regions]
    )


async def unregister(service: Service, request: Request) -> Response:
    memory = service.cuda_memory if _is_cuda(request) else service.system_memory
    memory.unregister(request.path_params.get("region"))
    return _empty()


async def register(service: Service, request: Request) -> Response:
    fields = await json_object(service, request)
    name = request.path_params["region"]
    for field in ("raw_handle" if _is_cuda(request) else "key", "byte_size"):
        if field not in fields:
            raise ServingError(Code.INVALID, f"Shared memory register request has no '{field}' field", param=field)
    byte_size = _unsigned(fields, "byte_size")
    if _is_cuda(request):
        handle = _member(fields, "raw_handle", dict, "non-object as object")
        text = _member(handle, "b64", str, "non-string as string")
        service.cuda_memory.register(name, decode_cuda_handle(text), _unsigned(fields, "device_id"), byte_size)
    else:
        key = _member(fields, "key", str, "non-string as string")
        service.system_memory.register(name, key, _unsigned(fields, "offset"), byte_size)
    return _empty()


def _unsigned(fields: dict[str, Any], name: str) -> int:
    complaint = "non-unsigned-integer as unsigned-integer"
    value: int = _member(fields, name, int, complaint, 0)
    if not 0 <= value < 1 << 63:
        raise wrong_member(name, complaint)
    return value


async def trace(service: Service, request: Request) -> Response:
    model = request.path_params.get("model", "")
    if model and not service.repository.versions(model):
        raise ServingError(Code.INVALID, f"Request for unknown model : {model}")
    if request.method == "POST":
        return document(asdict(service.trace.update(await json_object(service, request), model)))
    return document(asdict(service.trace.get(model)))


async def log_settings(service: Service, request: Request) -> Response:
    if request.method == "POST":
        return document(asdict(service.logging.update(await json_object(service, request))))
    return document(asdict(service.logging.get()))
