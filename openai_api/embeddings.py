"""POST /v1/embeddings: vectors of texts, token ids, or a chat."""

import base64
from dataclasses import dataclass
from functools import partial

import numpy as np
import orjson

from backends.pooling.description import Description
from openai_api.errors import invalid, unsupported
from openai_api.exchange import Exchange
from openai_api.fields import INT64_MAX, Fields
from openai_api.json_body import parse_object
from openai_api.messages import Message, read_messages
from openai_api.model import PoolingTextModel
from openai_api.options import OpenAIOptions
from openai_api.pooling import Pooled, Prepared, off_loop_if_large, pool, rows_of
from openai_api.pooling_fields import Input, RowOptions, read_inputs, read_options
from openai_api.prompt import check_roles
from openai_api.text_endpoints import TextService
from openai_api.wire import log_unread


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """`inputs` at `paths` of the body, or `messages` of which the template makes one."""

    options: RowOptions
    inputs: list[Input]
    paths: list[str]
    messages: list[Message] | None
    add_special_tokens: bool
    is_base64: bool
    dimensions: int | None


async def serve_embeddings(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /v1/embeddings"""
    request = await service.off_loop(body, partial(read_embedding, body, service.options))
    prepare = partial(_prepare, request=request)
    pooled = await pool(service, exchange, body, request.options, prepare, id_prefix="embd-", task="embed")
    write = partial(write_embeddings, is_base64=request.is_base64, dimensions=request.dimensions)
    await exchange.answer(await off_loop_if_large(service, pooled, write))


def read_embedding(body: bytes, limits: OpenAIOptions) -> EmbeddingRequest:
    """Raises ServingError for a wrong member."""
    fields = Fields(parse_object(body))
    is_chat = fields.raw("messages") is not None
    if is_chat and fields.raw("input") is not None:
        raise invalid("invalid_value", "input", "expected either 'input' or 'messages'")
    inputs, paths = ([], ["messages"]) if is_chat else read_inputs(fields, "input")
    fields.raw("user")  # taken, and changes nothing
    request = EmbeddingRequest(
        options=read_options(fields),
        inputs=inputs,
        paths=paths,
        messages=read_messages(fields, limits) if is_chat else None,
        add_special_tokens=fields.flag("add_special_tokens", not is_chat),
        is_base64=fields.choice("encoding_format", ("float", "base64")) == "base64",
        dimensions=fields.integer("dimensions", 1, INT64_MAX),
    )
    log_unread(fields)
    return request


def _prepare(model: PoolingTextModel, request: EmbeddingRequest) -> Prepared:
    if request.dimensions is not None:
        _check_dimensions(model.description, request.dimensions)
    inputs = request.inputs if request.messages is None else [_chat_text(model, request.messages)]
    special = request.add_special_tokens
    return Prepared(rows_of(model, request.options, inputs, request.paths, add_special_tokens=special), request.paths)


def _check_dimensions(description: Description, wanted: int) -> None:
    known, full = description.matryoshka, description.dimension
    if wanted == full:
        return
    if known is None:
        raise unsupported("dimensions", f"'dimensions': this model's vectors have {full} values and cannot be cut")
    if wanted > full or (known and wanted not in known):
        allowed = f"one of {', '.join(map(str, known))}" if known else f"at most {full}"
        raise invalid("invalid_value", "dimensions", f"'dimensions': expected {allowed}, got {wanted}")


def _chat_text(model: PoolingTextModel, messages: list[Message]) -> str:
    if model.template is None:
        raise unsupported("messages", "the model has no chat template: expected 'input'")
    check_roles(messages, model.tokenizer.settings.chat_templates.get("default", ""))
    return model.template.render(messages, add_generation_prompt=False)


def write_embeddings(pooled: Pooled, *, is_base64: bool, dimensions: int | None) -> bytes:
    """The answer's JSON: each float32 in the shortest form that reads back the same, or its bytes in base64."""
    vectors = pooled.vectors
    if dimensions is not None:
        vectors = cut(vectors, dimensions, normalize=pooled.model.description.normalize)
    write = _base64 if is_base64 else _floats
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, write(vector))
        for index, vector in enumerate(vectors)
    )
    head = orjson.dumps(
        {
            "id": pooled.identity.id,
            "object": "list",
            "created": pooled.identity.created,
            "model": pooled.identity.model,
            "usage": pooled.usage,
        }
    )
    return b'%b,"data":[%b]}' % (head[:-1], data)


def cut(vectors: np.ndarray, dimensions: int, *, normalize: bool) -> np.ndarray:
    """The first values of each vector, again of length 1 where the whole ones are."""
    vectors = vectors[:, :dimensions].copy()
    if not normalize:
        return vectors
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
    return vectors


def _base64(vector: np.ndarray) -> bytes:
    return b'"%b"' % base64.b64encode(vector.astype("<f4", copy=False).tobytes())


def _floats(vector: np.ndarray) -> bytes:
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)
