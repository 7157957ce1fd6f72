"""`generate` and `generate_stream` over ASGI."""

import time

from backends.api.base import LiveModel
from backends.api.caller import CALLER
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from gateway.errors import as_serving_error
from gateway.generate import ONE_RESPONSE, decode_generate, encode_generate
from gateway.http_body import JSON, Receive, Scope, Send, read_body, respond, respond_error
from gateway.kserve_service import Service, complete, count_refusal, is_mark, submit
from gateway.kserve_streaming import EVENT_STREAM, LostClientWatch, send_answers
from openai_api.http import ClientGoneError


async def generate(service: Service, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Exactly one answer as JSON. Any other number is an error, and the model's further work is cancelled."""
    accepted = await _accepted(service, name, version, scope, receive, send)
    if accepted is None:
        return
    model, request = accepted
    try:
        with LostClientWatch(receive, request):
            submit(service, model, request)
            body = encode_generate(await _only_answer(request))
    except Exception as failure:
        error = as_serving_error(failure)
        service.on_end(request, error)
        await respond_error(send, error)
        return
    service.on_end(request, None)
    await respond(send, 200, body, JSON)


async def _only_answer(request: InferenceRequest) -> InferenceResponse:
    answer: InferenceResponse | None = None
    async for response in request.stream:
        if is_mark(response):
            continue
        if answer is not None:
            raise ServingError(Code.INTERNAL, ONE_RESPONSE)
        answer = response
    if answer is None:
        raise ServingError(Code.INTERNAL, ONE_RESPONSE)
    return complete(answer, request)


async def generate_stream(
    service: Service, name: str, version: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Every answer as a server-sent event, for decoupled and ordinary models alike."""
    accepted = await _accepted(service, name, version, scope, receive, send)
    if accepted is None:
        return
    model, request = accepted

    def encode(response: InferenceResponse) -> bytes:
        return encode_generate(complete(response, request))

    with LostClientWatch(receive, request):
        submit(service, model, request)
        error = await send_answers(send, request, encode, EVENT_STREAM)
    service.on_end(request, error)


async def _accepted(
    service: Service, name: str, version: str, scope: Scope, receive: Receive, send: Send
) -> tuple[LiveModel, InferenceRequest] | None:
    """The model and its request, or None when it was refused and answered so."""
    received = time.monotonic()
    headers: dict[bytes, bytes] = dict(scope["headers"])
    try:
        service.repository.find(name, version)  # refuses before a body is read
        body = await read_body(receive, headers, service.max_body_bytes)
        model = service.repository.find(name, version)
        request = _decode(body, model, version)
        request.times.received = received
        request.cache_salt = CALLER.get().cache_salt
        request.parameters.update(service.forwarded(headers))
    except ClientGoneError:
        return None
    except Exception as error:
        await respond_error(send, as_serving_error(error))
        return None
    return model, request


def _decode(body: bytes, model: LiveModel, version: str) -> InferenceRequest:
    try:
        return decode_generate(body, model.config, version)
    except ServingError as error:
        count_refusal(model, error)
        raise
