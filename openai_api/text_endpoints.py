"""Chat and text completions: from a body to a running generation, and from its deltas to an answer."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from backends.api.caller import CALLER
from backends.lm.grammar import check_grammar
from openai_api.answers import Collected, chat_answer, completion_answer
from openai_api.catalog import Catalog
from openai_api.choice import Choice
from openai_api.choices import make_choices
from openai_api.chunks import ChatChunks, CompletionChunks
from openai_api.exchange import Exchange
from openai_api.generation import Generation, Writer
from openai_api.generation_fields import GenerationOptions
from openai_api.identity import Identity
from openai_api.logprobs import TokenTexts
from openai_api.model import TextModel
from openai_api.options import OpenAIOptions
from openai_api.prompt import PreparedPrompt, prepare_chat, prepare_completion
from openai_api.tensor_chat import serve_tensor_chat
from openai_api.usage import Usage
from openai_api.wire import read_chat, read_completion

T = TypeVar("T")
Prepare = Callable[[TextModel], Sequence[PreparedPrompt]]
MakeWriter = Callable[[Identity, GenerationOptions, Usage, TokenTexts], Writer]
Answer = Callable[[Identity, GenerationOptions, Collected, Usage, TokenTexts], bytes]

INLINE_BODY = 4096  # bytes; what a larger body asks for is parsed, rendered and tokenized on a worker thread


@dataclass(frozen=True, slots=True)
class TextService:
    """What the endpoints share. `workers` run what would hold up the event loop."""

    catalog: Catalog
    options: OpenAIOptions
    workers: Executor

    async def off_loop(self, body: bytes, function: Callable[[], T]) -> T:
        """`function()`, which takes time in proportion to `body`, for the same caller wherever it runs."""
        if len(body) <= INLINE_BODY:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self.workers, copy_context().run, function)

    async def check_constraints(self, options: GenerationOptions) -> None:
        """Raises ServingError for a grammar that no answer can be held to. Off the loop: a bad one may take long."""
        for grammar, param in options.constraints:
            await asyncio.get_running_loop().run_in_executor(self.workers, check_grammar, grammar, param)


@dataclass(frozen=True, slots=True)
class Form:
    """How one endpoint names and writes its answers."""

    id_prefix: str
    writer: MakeWriter
    answer: Answer


CHAT = Form("chatcmpl-", ChatChunks, chat_answer)
COMPLETION = Form("cmpl-", CompletionChunks, completion_answer)


async def serve_chat(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /v1/chat/completions"""
    request = await service.off_loop(body, partial(read_chat, body, service.options))
    found = service.catalog.tensor_model(request.options.model)
    if found is not None:
        exchange.take_id(request.options.request_id)
        identity = Identity.new(CHAT.id_prefix, found[0], request.options.echo_service_tier)
        await serve_tensor_chat(exchange, found[1], identity, request)
        return
    prepare = partial(prepare_chat, request=request, strict=service.options.strict_max_tokens)
    await serve(service, exchange, body, CHAT, request.options, prepare)


async def serve_completion(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /v1/completions"""
    request = await service.off_loop(body, partial(read_completion, body, service.options))
    prepare = partial(prepare_completion, request=request, strict=service.options.strict_max_tokens)
    await serve(service, exchange, body, COMPLETION, request.options, prepare)


async def serve(
    service: TextService,
    exchange: Exchange,
    body: bytes,
    form: Form,
    options: GenerationOptions,
    prepare: Prepare,
) -> None:
    """Find the model, make prompts and choices, give them to the engine, and answer.

    The engine's requests are given back however this ends: answer, error, or a cancel because the client left.
    """
    exchange.take_id(options.request_id)
    await service.check_constraints(options)
    caller = CALLER.get()
    salt, priority = caller.salted(options.cache_salt), caller.priority(options.priority)
    options = replace(options, cache_salt=salt, priority=priority)
    model, identity, choices = await _prepare(service, body, form, options, prepare)
    generation = Generation(choices, firsts=choices[:: options.n])
    texts = TokenTexts(model.tokenizer, options.tokens_as_ids)
    try:
        generation.submit(model)
        if options.stream:
            writer = form.writer(identity, options, generation.usage, texts)
            await generation.stream(await exchange.open_stream(writer.failure), writer)
        else:
            collected = await generation.collect()
            await exchange.answer(form.answer(identity, options, collected, generation.usage, texts))
    finally:
        generation.close()
        caller.spend(generation.usage.prompt + generation.usage.completion)
        exchange.fields = {"id": identity.id, "model": identity.model, **generation.as_fields()}


async def _prepare(
    service: TextService, body: bytes, form: Form, options: GenerationOptions, prepare: Prepare
) -> tuple[TextModel, Identity, list[Choice]]:
    """The model and what to ask of it. A model that is replaced while a long prompt is prepared for it refuses new
    work, so the prompt is then prepared again for its successor."""
    timeout = service.options.request_timeout
    while True:
        model_id, model = service.catalog.text_model(options.model)
        identity = Identity.new(form.id_prefix, model_id, options.echo_service_tier)
        work = partial(_choices, identity, model, options, prepare, timeout)
        choices = await service.off_loop(body, work)
        if service.catalog.text_model(options.model)[1] is model:
            return model, identity, choices


def _choices(
    identity: Identity, model: TextModel, options: GenerationOptions, prepare: Prepare, timeout: float | None
) -> list[Choice]:
    return make_choices(identity, model, options, prepare(model), timeout)
