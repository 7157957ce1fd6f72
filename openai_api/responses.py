"""`/v1/responses`: a chat whose answer is a list of items, told in typed events. Nothing of it is kept."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from backends.api.errors import ServingError
from openai_api.answers import Collected
from openai_api.ascii_json import ascii_json
from openai_api.choice import Choice, Delta
from openai_api.errors import error_object, unsupported
from openai_api.exchange import Exchange
from openai_api.generation_fields import GenerationOptions
from openai_api.identity import Identity
from openai_api.logprobs import ChatLogprobs, TokenTexts
from openai_api.model import TextModel
from openai_api.prompt import PreparedPrompt, prepare_chat
from openai_api.response_items import Event, ResponseItems
from openai_api.response_wire import ResponseRequest, read_response
from openai_api.text_endpoints import Form, TextService, serve
from openai_api.usage import Usage


async def serve_response(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /v1/responses"""
    request = await service.off_loop(body, partial(read_response, body, service.options))
    options = request.chat.options
    if service.catalog.tensor_model(options.model) is not None:
        message = f"the model '{options.model}' answers /v1/chat/completions only"
        raise unsupported("model", message, "unsupported_endpoint")
    form = Form("resp_", partial(ResponseEvents, request.repeated), partial(response_answer, request.repeated))
    prepare = partial(_prepare, request=request, strict=service.options.strict_max_tokens)
    await serve(service, exchange, body, form, options, prepare)


class ResponseEvents:
    """Writes one response as it comes. Every event has a number; the first and the last have the response as it is."""

    def __init__(
        self, repeated: dict[str, Any], identity: Identity, options: GenerationOptions, usage: Usage, texts: TokenTexts
    ) -> None:
        self._repeated = repeated
        self._identity = identity
        self._usage = usage
        self._items = _items(options, texts)
        self._num_events = 0

    def opening(self, choices: Sequence[Choice]) -> bytes:
        return self._state("response.created", "in_progress") + self._state("response.in_progress", "in_progress")

    def delta(self, choice: Choice, delta: Delta) -> bytes:
        return b"".join([self._event(event) for event in self._items.push(delta)])

    def ending(self) -> bytes:
        status = _status(self._items)
        return self._state(f"response.{status}", status, usage=self._usage)

    def failure(self, error: ServingError) -> bytes:
        return self._state("response.failed", "failed", error=error)

    def _state(self, kind: str, status: str, **ending: Any) -> bytes:
        response = _response(self._repeated, self._identity, self._items, status, **ending)
        return self._event({"type": kind, "response": response})

    def _event(self, event: Event) -> bytes:
        number = self._num_events
        self._num_events += 1
        head = f"event: {event['type']}\ndata: ".encode()
        return head + ascii_json({**event, "sequence_number": number}) + b"\n\n"


def response_answer(
    repeated: dict[str, Any],
    identity: Identity,
    options: GenerationOptions,
    collected: Collected,
    usage: Usage,
    texts: TokenTexts,
) -> bytes:
    items = _items(options, texts)
    [(_, deltas)] = collected
    for delta in deltas:
        items.push(delta)
    return orjson.dumps(_response(repeated, identity, items, _status(items), usage=usage))


def _prepare(model: TextModel, request: ResponseRequest, strict: bool) -> list[PreparedPrompt]:
    try:
        return prepare_chat(model, request.chat, strict)
    except ServingError as error:
        if error.param is None or not error.param.startswith("messages"):
            raise
        # the messages were made from the items here, so their paths mean nothing to the client
        raise ServingError(error.code, error.message, param="input", reason=error.reason) from None


def _items(options: GenerationOptions, texts: TokenTexts) -> ResponseItems:
    top = options.sampling.logprobs
    return ResponseItems(None if top is None else ChatLogprobs(texts, top))


def _status(items: ResponseItems) -> str:
    return "incomplete" if items.is_cut else "completed"


def _response(
    repeated: dict[str, Any],
    identity: Identity,
    items: ResponseItems,
    status: str,
    *,
    usage: Usage | None = None,
    error: ServingError | None = None,
) -> dict[str, Any]:
    return {
        "id": identity.id,
        "object": "response",
        "created_at": identity.created,
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "error": None if error is None else _error(error),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": identity.model,
        "output": items.as_json(),
        "usage": None if usage is None else usage.as_response_json(),
        **repeated,
    }


def _error(error: ServingError) -> dict[str, Any]:
    told = error_object(error)
    return {"code": told["code"] or told["type"], "message": told["message"]}
