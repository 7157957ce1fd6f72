"""What every gRPC handler is given: the service, and the way from a grpc thread to the event loop."""

import asyncio
import hmac
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from gateway.admission import Release, nothing_to_release
from gateway.key_targets import grpc_target
from gateway.kserve_grpc_keys import bearer
from gateway.kserve_service import Service, submit

T = TypeVar("T")
_RESTRICTION_PREFIX = "triton-grpc-protocol-"


class Front:
    """Used by any number of grpc threads at once; `stopping` refuses whatever comes."""

    def __init__(self, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.service = service
        self.stopping = False
        self._loop = loop

    def admit(self, category: str, context: grpc.ServicerContext) -> None:
        """Raise ServingError(UNAVAILABLE) while stopping, or without the header that the category asks for."""
        if self.stopping:
            raise ServingError(Code.UNAVAILABLE, "GRPC server is shutting down and has stopped accepting new requests.")
        if not self.service.restrictions:
            return
        restriction = self.service.restrictions.get(category)
        if restriction is None:
            return
        header = _RESTRICTION_PREFIX + restriction.header.lower()
        given = str(dict(context.invocation_metadata()).get(header, ""))
        if not hmac.compare_digest(given.encode(), restriction.value.encode()):
            raise ServingError(Code.UNAVAILABLE, f"This protocol is restricted, expecting header '{header}'")

    def enter(self, message: Any, context: grpc.ServicerContext) -> Release:
        """Take `message` on for the key of its call; call what is returned at its end. Raises ServingError."""
        gate = self.service.gate
        target = grpc_target(message) if gate is not None else None
        if gate is None or target is None:
            return nothing_to_release
        return gate.enter(gate.authenticate(bearer(context.invocation_metadata())), target)

    def cache_salt(self, context: grpc.ServicerContext) -> str:
        """That of the call's key."""
        gate = self.service.gate
        if gate is None:
            return ""
        return gate.caller(gate.authenticate(bearer(context.invocation_metadata()))).cache_salt

    def submit(self, model: LiveModel, request: InferenceRequest) -> None:
        """Hand `request` over, on this thread where the model allows it, else on the event loop."""
        if getattr(model, "infers_on_any_thread", False):
            submit(self.service, model, request)
            return
        try:
            self._loop.call_soon_threadsafe(submit, self.service, model, request)
        except RuntimeError:  # the loop has closed
            request.stream.fail(ServingError(Code.UNAVAILABLE, "Server is stopping"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, done on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def model_version(text: str) -> str:
    """A version as requests name it, "" for the policy's choice. Raises ServingError(INVALID) in Triton's words."""
    if not text:
        return ""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ServingError(
            Code.INVALID,
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0",
        )
    if digits != text:
        raise ServingError(
            Code.INVALID, f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return text.lstrip("0") or "0"
