"""ModelInfer, and what it shares with streams: from a message to a checked request (triton spec 2.2)."""

import time
from functools import partial
from typing import Any

import grpc

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from gateway.errors import as_serving_error
from gateway.kserve_grpc_front import Front, model_version
from gateway.kserve_json_answer import AnswerForm
from gateway.kserve_proto import answer_form, decode_infer, encode_infer
from gateway.kserve_service import complete, count_refusal, labels_of, no_answer

_FOREVER = 1e9  # seconds: what grpc says of a call without a deadline is more


def model_infer(front: Front, message: Any, context: grpc.ServicerContext) -> Any:
    """One answer to one request; the caller's cancel or passed deadline cancels the model's work."""
    received = time.monotonic()
    model, request, form = accept(front, message, context, allow_decoupled=False)
    request.times.received = received
    request.deadline = deadline_after(received, context.time_remaining())
    if not context.add_callback(partial(request.stream.cancel, "the client has gone")):
        request.stream.cancel("the client has gone")
    try:
        front.submit(model, request)
        response = request.stream.get()
        if response is None:
            raise no_answer(request)
        answer = encode_infer(complete(response, request), form)
    except Exception as error:
        failure = as_serving_error(error)
        front.service.on_end(request, failure)
        raise failure from error
    front.service.on_end(request, None)
    return answer


def deadline_after(received: float, remaining: float | None) -> float | None:
    """The deadline of a call that was `received` with so many seconds left; None where that is for ever."""
    return received + remaining if remaining is not None and remaining < _FOREVER else None


def accept(
    front: Front, message: Any, context: grpc.ServicerContext, *, allow_decoupled: bool
) -> tuple[LiveModel, InferenceRequest, AnswerForm]:
    """The live model, the checked request and the form of its answers. Raises ServingError."""
    version = model_version(message.model_version)
    service = front.service
    model = service.repository.find(message.model_name, version)
    if model.config.decoupled and not allow_decoupled:
        raise ServingError(Code.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy")
    try:
        request, windows = decode_infer(message, model.config, service.system_memory.window)
    except ServingError as error:
        count_refusal(model, error)
        raise
    request.cache_salt = front.cache_salt(context)
    if service.forwarded_headers is not None:
        headers = {str(name).encode(): _as_bytes(value) for name, value in context.invocation_metadata()}
        request.parameters.update(service.forwarded(headers))
    return model, request, answer_form(request, windows, labels_of(model), model.config)


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
