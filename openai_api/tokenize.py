"""What a model's tokenizer does with a text, a chat or tokens: /tokenize, /detokenize and /tokenizer_info, in vLLM's shapes."""

from functools import partial

import orjson

from backends.text.decoder import decode
from openai_api.catalog import Catalog
from openai_api.errors import invalid, unsupported
from openai_api.exchange import Exchange
from openai_api.fields import INT64_MAX, Fields, read_integer
from openai_api.json_body import parse_object
from openai_api.model import TextModel
from openai_api.options import OpenAIOptions
from openai_api.prompt import check_roles, render_chat
from openai_api.sampling import check_tokens
from openai_api.text_endpoints import TextService
from openai_api.wire import read_chat

_MAX_TOKENS = 1 << 20  # of a request to /detokenize


async def serve_tokenize(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /tokenize, with a `prompt` or with `messages`."""
    answer = await service.off_loop(body, partial(_tokenize, service.catalog, service.options, body))
    await exchange.answer(answer)


async def serve_detokenize(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /detokenize"""
    await exchange.answer(await service.off_loop(body, partial(_detokenize, service.catalog, body)))


def tokenizer_info(catalog: Catalog, model_id: str) -> dict[str, object]:
    """GET /tokenizer_info of the model, "" for the only one: lm-eval looks here for the end token of a tokenizer it does
    not have. Raises ServingError."""
    _, model = catalog.text_model(model_id)
    tokenizer = model.tokenizer
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": model.max_model_len,
        "chat_template": tokenizer.chat_template,
        "bos_token": None,
        "eos_token": None,
        "pad_token": None,
        **tokenizer.special_tokens,
    }


def _tokenize(catalog: Catalog, options: OpenAIOptions, body: bytes) -> bytes:
    fields = Fields(parse_object(body))
    _, model = catalog.text_model(fields.string("model", 1024) or "")
    is_chat = fields.raw("messages") is not None
    if is_chat == (fields.raw("prompt") is not None):
        raise invalid("invalid_value", "prompt", "expected either 'prompt' or 'messages'")
    adds_special = fields.flag("add_special_tokens", not is_chat)
    text = _chat_text(model, options, body) if is_chat else fields.string("prompt") or ""
    tokens = model.tokenizer.encode(text, add_special_tokens=adds_special)
    answer: dict[str, object] = {"count": len(tokens), "max_model_len": model.max_model_len, "tokens": tokens}
    shown = fields.flag("return_token_strs")
    data = model.tokenizer.token_bytes
    answer["token_strs"] = [data(token).decode("utf-8", "replace") for token in tokens] if shown else None
    return orjson.dumps(answer)


def _chat_text(model: TextModel, options: OpenAIOptions, body: bytes) -> str:
    request = read_chat(body, options)
    if model.template is None:
        raise unsupported("model", "the model has no chat template", "unsupported_endpoint")
    check_roles(request.messages, model.tokenizer.chat_template or "")
    return render_chat(model.template, model, request)


def _detokenize(catalog: Catalog, body: bytes) -> bytes:
    fields = Fields(parse_object(body))
    _, model = catalog.text_model(fields.string("model", 1024) or "")
    tokens = fields.array("tokens", lambda item, param: read_integer(item, param, 0, INT64_MAX), _MAX_TOKENS)
    if tokens is None:
        raise fields.missing("tokens")
    check_tokens(tokens, model.tokenizer.vocab_size, "tokens")
    return orjson.dumps({"prompt": decode(model.tokenizer, tokens, skip_special_tokens=False)})
