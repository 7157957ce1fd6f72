"""API keys on gRPC: `authorization: Bearer KEY` in the call's metadata."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import grpc

from backends.api.errors import ServingError
from gateway.admission import Gate
from gateway.errors import grpc_details, grpc_status

_OPEN = (
    "/grpc.health.v1.Health/",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
)


def bearer(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The value of `authorization`, "" where there is none."""
    for name, value in metadata or ():
        if name == "authorization":
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return ""


def grpc_code(error: ServingError) -> grpc.StatusCode:
    """The status of `error`: a key's limit is its own, and not the server's state as a full queue is."""
    return grpc.StatusCode.RESOURCE_EXHAUSTED if error.reason == "rate_limit_exceeded" else grpc_status(error.code)


class KeyInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Lets no call but those about health past without a key, whatever service it is for."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        if call.method.startswith(_OPEN):
            return continuation(call)
        try:
            self._gate.authenticate(bearer(call.invocation_metadata))
        except ServingError as error:
            return _refusal(continuation(call), error)
        return continuation(call)


def _refusal(handler: Any, error: ServingError) -> Any:
    """A handler of the same kind that only aborts."""
    if handler is None:
        return None
    abort = partial(_abort, error)
    if handler.request_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
    else:
        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
    return make(abort, handler.request_deserializer, handler.response_serializer)


def _abort(error: ServingError, request: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc_code(error), grpc_details(error))
