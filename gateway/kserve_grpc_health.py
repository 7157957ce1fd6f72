"""`grpc.health.v1.Health`: the server as a whole, the inference service, and each model by its name."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from gateway.kserve_service import Service

_INTERVAL = 0.2  # seconds between two looks of a Watch
_SERVER_NAMES = ("", "inference.GRPCInferenceService")
_Status = health_pb2.HealthCheckResponse


class Health:
    """Answers from the state of the moment, so there is nothing to keep up to date. A Watch ends at `stop`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopping = threading.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        codec = (health_pb2.HealthCheckRequest.FromString, _Status.SerializeToString)
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, *codec),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, *codec),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    def stop(self) -> None:
        """Everything is NOT_SERVING from here on."""
        self._stopping.set()

    def _check(self, message: Any, context: grpc.ServicerContext) -> Any:
        status = self._status(message.service)
        if status == _Status.SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service '{message.service}'")
        return _Status(status=status)

    def _watch(self, message: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        last: int | None = None
        while context.is_active():
            status = self._status(message.service)
            if status != last:
                yield _Status(status=status)
                last = status
            if self._stopping.wait(_INTERVAL):
                if last != _Status.NOT_SERVING:
                    yield _Status(status=_Status.NOT_SERVING)
                return

    def _status(self, name: str) -> int:
        repository = self._service.repository
        if name in _SERVER_NAMES:
            ready = self._service.is_server_ready()
        elif repository.is_ready(name):
            ready = True
        elif any(entry.name == name for entry in repository.index()):
            ready = False
        else:
            return int(_Status.SERVICE_UNKNOWN)
        return int(_Status.SERVING if ready and not self._stopping.is_set() else _Status.NOT_SERVING)
