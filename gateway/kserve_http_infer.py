"""`POST /v2/models/{model}[/versions/{version}]/infer`, the hot path: plain ASGI, no router, no objects it can spare."""

import asyncio
import time
from dataclasses import replace

from backends.api.base import LiveModel
from backends.api.caller import CALLER
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceResponse, RequestedOutput
from gateway.errors import as_serving_error
from gateway.http_body import (
    JSON,
    App,
    Header,
    Receive,
    Scope,
    Send,
    best_encoding,
    compress,
    read_body,
    respond,
    respond_error,
)
from gateway.kserve_json import Decoded, decode
from gateway.kserve_json_answer import Answer, AnswerForm, encode
from gateway.kserve_service import Service, check_restriction, complete, count_refusal, labels_of, no_answer, submit
from gateway.kserve_streaming import EVENT_STREAM, NDJSON, LostClientWatch, decoupled_refusal, send_answers
from gateway.kserve_tensors import num_bytes
from openai_api.http import ClientGoneError

BINARY = b"application/octet-stream"
_PREFIX, _SUFFIX = "/v2/models/", "/infer"


class HotPath:
    """Takes `/infer` requests before any router sees them; passes everything else on to `app`."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            target = infer_target(scope["path"])
            if target is not None:
                await infer(self._service, *target, scope, receive, send)
                return
        await self._app(scope, receive, send)


def infer_target(path: str) -> tuple[str, str] | None:
    """(model, version) of an infer path, version "" when the path has none; None for any other path."""
    if not path.endswith(_SUFFIX) or not path.startswith(_PREFIX):
        return None
    model, _, rest = path[len(_PREFIX) : -len(_SUFFIX)].partition("/")
    if not model:
        return None
    if not rest:
        return model, ""
    word, _, version = rest.partition("/")
    return (model, version) if word == "versions" and version.isdecimal() and version.isascii() else None


async def infer(service: Service, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request. Every path through here ends with an answer, an error, or a client that has gone."""
    received = time.monotonic()
    headers: dict[bytes, bytes] = dict(scope["headers"])
    try:
        check_restriction(service, "inference", headers)
        model = service.repository.find(name, version)
        content_type = _stream_type(headers.get(b"accept", b""))
        if model.config.decoupled and content_type is None:
            raise decoupled_refusal()
        body = await read_body(receive, headers, service.max_body_bytes)
        model, decoded = await _decoded(service, name, version, body, header_length(headers))
        decoded.request.times.received = received
        decoded.request.cache_salt = CALLER.get().cache_salt
        if service.forwarded_headers is not None:
            decoded.request.parameters.update(service.forwarded(headers))
    except ClientGoneError:
        return
    except Exception as error:
        await respond_error(send, as_serving_error(error))
        return
    form = answer_form(decoded, model)
    if content_type is not None:
        await _stream(service, model, decoded, form, content_type, receive, send)
    else:
        await _answer(service, model, decoded, form, headers, receive, send)


async def _decoded(
    service: Service, name: str, version: str, body: bytes, header_length: int | None
) -> tuple[LiveModel, Decoded]:
    """The request and the model it was checked against, which is the live one at this moment."""
    window = service.system_memory.window
    while True:
        model = service.repository.find(name, version)
        try:
            if len(body) <= service.offload_bytes:
                return model, decode(body, header_length, model.config, version, window)
            decoded = await asyncio.to_thread(decode, body, header_length, model.config, version, window)
        except ServingError as error:
            count_refusal(model, error)
            raise
        if service.repository.find(name, version) is model:  # else it was reloaded meanwhile, and refuses new work
            return model, decoded


def answer_form(decoded: Decoded, model: LiveModel) -> AnswerForm:
    outputs = {output.name: output for output in decoded.request.outputs}
    batched = model.config.max_batch_size > 0
    return AnswerForm(outputs, decoded.binary, labels_of(model), batched, decoded.windows)


async def _answer(
    service: Service,
    model: LiveModel,
    decoded: Decoded,
    form: AnswerForm,
    headers: dict[bytes, bytes],
    receive: Receive,
    send: Send,
) -> None:
    request = decoded.request
    try:
        with LostClientWatch(receive, request):
            submit(service, model, request)
            response = await anext(request.stream)
        answer = await _encoded(service, complete(response, request), form)
    except StopAsyncIteration:
        await _end(service, decoded, no_answer(request), send)
        return
    except Exception as error:
        await _end(service, decoded, as_serving_error(error), send)
        return
    service.on_end(request, None)
    content_type, more = body_type_and_more(answer)
    body = answer.body
    encoding = best_encoding(headers[b"accept-encoding"]) if b"accept-encoding" in headers else b""
    if encoding:
        body = (
            compress(body, encoding)
            if len(body) <= service.offload_bytes
            else await asyncio.to_thread(compress, body, encoding)
        )
        more.append((b"content-encoding", encoding))
    await respond(send, 200, body, content_type, more)


def body_type_and_more(answer: Answer) -> tuple[bytes, list[Header]]:
    """The content type of an answer, and the header that says where its JSON ends."""
    if answer.json_length is None:
        return JSON, []
    return BINARY, [(b"inference-header-content-length", b"%d" % answer.json_length)]


async def _end(service: Service, decoded: Decoded, error: ServingError, send: Send) -> None:
    service.on_end(decoded.request, error)
    await respond_error(send, error)


async def _encoded(service: Service, response: InferenceResponse, form: AnswerForm) -> Answer:
    if num_bytes(response.outputs) > service.offload_bytes:
        return await asyncio.to_thread(encode, response, form)
    return encode(response, form)


async def _stream(
    service: Service,
    model: LiveModel,
    decoded: Decoded,
    form: AnswerForm,
    content_type: bytes,
    receive: Receive,
    send: Send,
) -> None:
    request = decoded.request
    # an event is text, whatever the request says about binary data
    outputs = {name: RequestedOutput(name, wanted.classification) for name, wanted in form.outputs.items()}
    form = replace(form, binary=False, outputs=outputs)

    def encode_one(response: InferenceResponse) -> bytes:
        return encode(complete(response, request), form).body

    with LostClientWatch(receive, request):
        submit(service, model, request)
        error = await send_answers(send, request, encode_one, content_type)
    service.on_end(request, error)


def is_streamed(headers: dict[bytes, bytes]) -> bool:
    """Whether the caller takes a stream of answers."""
    return _stream_type(headers.get(b"accept", b"")) is not None


def _stream_type(accept: bytes) -> bytes | None:
    if b"text/event-stream" in accept:
        return EVENT_STREAM
    return NDJSON if b"application/x-ndjson" in accept else None


def header_length(headers: dict[bytes, bytes]) -> int | None:
    """The value of Inference-Header-Content-Length. Raises ServingError(INVALID) when it is not a number."""
    text = headers.get(b"inference-header-content-length")
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ServingError(
            Code.INVALID,
            f"header Inference-Header-Content-Length: expected a number of bytes, got '{text.decode('latin-1')}'",
        ) from None
