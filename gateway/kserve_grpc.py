"""The gRPC server of KServe v2: `inference.GRPCInferenceService`, `grpc.health.v1.Health` and reflection.

grpc's threaded server rather than grpc.aio, which costs more and serves streams no better. ModelInfer and ModelStreamInfer
go around the threads where they can (`kserve_grpc_direct`); all else has a thread for each call under way. No call is kept from being
taken by a slow model until `max_concurrent` are open, past which callers get RESOURCE_EXHAUSTED.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection
from tritonclient.grpc import service_pb2 as pb

from backends.api.errors import Code, ServingError
from gateway import kserve_grpc_control as control
from gateway.admission import nothing_to_release
from gateway.errors import as_serving_error, grpc_details
from gateway.kserve_grpc_direct import direct_calls
from gateway.kserve_grpc_front import Front
from gateway.kserve_grpc_health import Health
from gateway.kserve_grpc_infer import model_infer
from gateway.kserve_grpc_keys import KeyInterceptor, grpc_code
from gateway.kserve_grpc_threads import stream_infer
from gateway.kserve_service import Service

SERVICE = "inference.GRPCInferenceService"
Handler = Callable[[Front, Any], Any]
# rpc -> (category of restriction, handler); ModelInfer and ModelStreamInfer have their own forms
_UNARY: dict[str, tuple[str, Handler]] = {
    "ServerLive": ("health", control.server_live),
    "ServerReady": ("health", control.server_ready),
    "ModelReady": ("health", control.model_ready),
    "ServerMetadata": ("metadata", control.server_metadata),
    "ModelMetadata": ("metadata", control.metadata),
    "ModelConfig": ("model-config", control.config),
    "ModelStatistics": ("statistics", control.statistics),
    "RepositoryIndex": ("model-repository", control.index),
    "RepositoryModelLoad": ("model-repository", control.load),
    "RepositoryModelUnload": ("model-repository", control.unload),
    "SystemSharedMemoryStatus": ("shared-memory", control.system_status),
    "SystemSharedMemoryRegister": ("shared-memory", control.system_register),
    "SystemSharedMemoryUnregister": ("shared-memory", control.system_unregister),
    "CudaSharedMemoryStatus": ("shared-memory", control.cuda_status),
    "CudaSharedMemoryRegister": ("shared-memory", control.cuda_register),
    "CudaSharedMemoryUnregister": ("shared-memory", control.cuda_unregister),
    "TraceSetting": ("trace", control.trace),
    "LogSettings": ("logging", control.log_settings),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """Where and how to listen. Keepalive and age settings are grpc's own, in milliseconds; None leaves its default."""

    address: str = "127.0.0.1"
    port: int = 8001
    reuse_port: bool = False
    max_concurrent: int = 512
    server_cert: Path | None = None
    server_key: Path | None = None
    root_cert: Path | None = None
    use_mutual_ssl: bool = False
    compression: str = "none"  # of answers: none, low, medium, high
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data_ms: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age_ms: int | None = None
    max_connection_age_grace_ms: int | None = None


class GrpcServer:
    """Owns the listening server and its threads. Models whose `infer` belongs to the event loop are called there."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop, options: GrpcOptions = GrpcOptions()) -> None:
        self._front = Front(service, loop)
        self._options = options
        self._pool = ThreadPoolExecutor(options.max_concurrent, "grpc")
        self._server = grpc.server(
            self._pool,
            options=_channel_options(options, service.max_body_bytes),
            # one more than threads, so that a full server says so instead of letting requests wait unseen
            maximum_concurrent_rpcs=options.max_concurrent,
            compression=_compression(options.compression),
            interceptors=[KeyInterceptor(service.gate)] if service.gate is not None else None,
        )
        self._health = Health(service)
        self._server.add_generic_rpc_handlers((_handlers(self._front), self._health.handlers()))
        self._direct = direct_calls(self._server, self._front, self._pool, options.max_concurrent)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def start(self) -> int:
        """Listen; returns the port. Raises ServingError(UNAVAILABLE) for an address that is taken or not ours."""
        where = f"{self._options.address}:{self._options.port}"
        try:
            credentials = _credentials(self._options)
            if credentials is None:
                port: int = self._server.add_insecure_port(where)
            else:
                port = self._server.add_secure_port(where, credentials)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ServingError(
                Code.UNAVAILABLE, f"failed to start GRPC service: Unavailable - Socket '{where}' already in use"
            )
        self._server.start()
        if self._direct is not None:
            self._direct.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones end within `grace_s` seconds, then cancel the rest."""
        self._front.stopping = True
        self._health.stop()
        stopped = self._server.stop(grace_s)
        await asyncio.to_thread(stopped.wait)
        self._pool.shutdown(wait=False)


def _handlers(front: Front) -> grpc.GenericRpcHandler:
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            partial(_answer, front, category, handler), *_codec(f"{name}Request", f"{name}Response")
        )
        for name, (category, handler) in _UNARY.items()
    }
    methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
        partial(_answer_with_context, front, "inference", model_infer),
        *_codec("ModelInferRequest", "ModelInferResponse"),
    )
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        partial(_stream, front), *_codec("ModelInferRequest", "ModelStreamInferResponse")
    )
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _codec(request: str, response: str) -> tuple[Any, Any]:
    return getattr(pb, request).FromString, getattr(pb, response).SerializeToString


def _answer(front: Front, category: str, handler: Handler, message: Any, context: grpc.ServicerContext) -> Any:
    return _answer_with_context(front, category, lambda front, message, _: handler(front, message), message, context)


def _answer_with_context(
    front: Front,
    category: str,
    handler: Callable[[Front, Any, grpc.ServicerContext], Any],
    message: Any,
    context: grpc.ServicerContext,
) -> Any:
    """`handler`'s answer, or its error as a status; a bug is logged and told without its traceback."""
    release = nothing_to_release
    try:
        front.admit(category, context)
        release = front.enter(message, context)
        return handler(front, message, context)
    except Exception as error:
        failure = as_serving_error(error)
    finally:
        release()
    return context.abort(grpc_code(failure), grpc_details(failure))  # raises


def _stream(front: Front, messages: Any, context: grpc.ServicerContext) -> Any:
    try:
        front.admit("inference", context)
        yield from stream_infer(front, messages, context)
    except ServingError as error:
        context.abort(grpc_code(error), grpc_details(error))


def _channel_options(options: GrpcOptions, max_receive: int) -> list[tuple[str, int]]:
    settings = {
        "grpc.max_receive_message_length": max_receive,
        "grpc.max_send_message_length": -1,
        "grpc.so_reuseport": int(options.reuse_port),
        "grpc.keepalive_time_ms": options.keepalive_time_ms,
        "grpc.keepalive_timeout_ms": options.keepalive_timeout_ms,
        "grpc.keepalive_permit_without_calls": int(options.keepalive_permit_without_calls),
        "grpc.http2.max_pings_without_data": options.http2_max_pings_without_data,
        "grpc.http2.min_ping_interval_without_data_ms": options.http2_min_recv_ping_interval_without_data_ms,
        "grpc.http2.max_ping_strikes": options.http2_max_ping_strikes,
        "grpc.max_connection_age_ms": options.max_connection_age_ms,
        "grpc.max_connection_age_grace_ms": options.max_connection_age_grace_ms,
    }
    return [(name, value) for name, value in settings.items() if value is not None]


def _compression(level: str) -> grpc.Compression:
    """grpc for Python has algorithms and no levels: any level but "none" is gzip."""
    return grpc.Compression.NoCompression if level == "none" else grpc.Compression.Gzip


def _credentials(options: GrpcOptions) -> grpc.ServerCredentials | None:
    if options.server_cert is None or options.server_key is None:
        return None
    root = _pem(options.root_cert) if options.root_cert else None
    pair = (_pem(options.server_key), _pem(options.server_cert))
    return grpc.ssl_server_credentials([pair], root, options.use_mutual_ssl)


def _pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServingError(
            Code.INVALID, f"failed to start GRPC service: cannot read '{path}': {error.strerror}"
        ) from None
