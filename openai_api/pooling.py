"""Rows of a request through a pooling model: checked, pooled, given back when the client leaves, accounted for."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from backends.api.caller import CALLER
from backends.api.errors import ServingError
from backends.pooling.request import check_lengths, pooling_request, read_vectors
from backends.pooling.runner import Row
from backends.pooling.tokenizer import Truncation
from openai_api.errors import invalid
from openai_api.exchange import Exchange
from openai_api.identity import Identity
from openai_api.model import PoolingTextModel
from openai_api.pooling_fields import Input, RowOptions
from openai_api.sampling import too_long
from openai_api.text_endpoints import TextService

Prepare = Callable[[PoolingTextModel], "Prepared"]

_INLINE_VALUES = 16_384  # of an answer, which are written in under a millisecond


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rows of a request, and the path of each in the body."""

    rows: Sequence[Row]
    params: Sequence[str]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Pooled:
    """`vectors` (rows, dimension) float32."""

    identity: Identity
    model: PoolingTextModel
    vectors: np.ndarray
    num_tokens: int

    @property
    def usage(self) -> dict[str, object]:
        """The answer's member of that name."""
        return {"prompt_tokens": self.num_tokens, "total_tokens": self.num_tokens}


async def pool(
    service: TextService,
    exchange: Exchange,
    body: bytes,
    options: RowOptions,
    prepare: Prepare,
    *,
    id_prefix: str,
    task: str = "",
) -> Pooled:
    """What the model that `options` name makes of the rows of `prepare`; `task` is what it must do, "" for any.

    Raises ServingError. When the work is cancelled, the engine drops the request.
    """
    exchange.take_id(options.request_id)
    caller = CALLER.get()
    model_id, model, prepared = await _prepare(service, body, options, prepare, task)
    identity = Identity.new(id_prefix, model_id)
    timeout = service.options.request_timeout
    deadline = None if timeout is None else time.monotonic() + timeout
    request = pooling_request(identity.id, prepared.rows, priority=caller.priority(options.priority), deadline=deadline)
    num_tokens = prepared.num_tokens
    try:
        model.pool(request)
        vectors = await read_vectors(request)
    finally:
        request.stream.cancel("the client left")
        caller.spend(num_tokens if request.times.scheduled else 0)
        exchange.fields = {
            "id": identity.id,
            "model": model_id,
            "texts": len(prepared.rows),
            "prompt_tokens": num_tokens,
            "queue_s": max(request.times.scheduled - request.arrived, 0.0),
        }
    return Pooled(identity, model, vectors, num_tokens)


async def _prepare(
    service: TextService, body: bytes, options: RowOptions, prepare: Prepare, task: str
) -> tuple[str, PoolingTextModel, Prepared]:
    """A model that is replaced while its rows are made refuses new work, so they are then made for its successor."""
    while True:
        model_id, model = service.catalog.pooling_model(options.model, task)
        prepared = await service.off_loop(body, partial(_checked, model, prepare))
        if service.catalog.pooling_model(options.model, task)[1] is model:
            return model_id, model, prepared


def _checked(model: PoolingTextModel, prepare: Prepare) -> Prepared:
    prepared = prepare(model)
    check_lengths(prepared.rows, model.max_model_len, prepared.params)
    return prepared


def truncation(options: RowOptions, model: PoolingTextModel) -> Truncation | None:
    """Raises ServingError for more tokens than the model takes."""
    if options.truncate is None:
        return None
    limit = model.max_model_len
    if options.truncate > limit:
        raise too_long(limit, f"truncate_prompt_tokens is {options.truncate}", "truncate_prompt_tokens")
    return Truncation(limit if options.truncate == -1 else options.truncate, options.truncate_left)


def rows_of(
    model: PoolingTextModel,
    options: RowOptions,
    inputs: Sequence[Input],
    params: Sequence[str],
    *,
    add_special_tokens: bool = True,
) -> list[Row]:
    """A row an input: texts through the tokenizer, token ids as they are. Raises ServingError."""
    cut = truncation(options, model)
    prompt = model.description.prompt
    texts = [prompt + item for item in inputs if isinstance(item, str)]
    encoded = iter(model.tokenizer.encode(texts, cut, add_special_tokens=add_special_tokens))
    return [
        next(encoded) if isinstance(item, str) else _given(item, param, model.description.vocab_size, cut)
        for item, param in zip(inputs, params, strict=True)
    ]


def _given(tokens: list[int], param: str, vocab_size: int, cut: Truncation | None) -> Row:
    if max(tokens) >= vocab_size:
        raise _foreign(param, max(tokens), vocab_size)
    if cut is not None:
        tokens = tokens[-cut.keep :] if cut.from_left else tokens[: cut.keep]
    return Row(tokens, len(tokens))


def _foreign(param: str, token: int, vocab_size: int) -> ServingError:
    message = (
        f"'{param}': token id {token} is outside the model's vocabulary of {vocab_size}. A client that tokenizes with another "
        "model's vocabulary must send text instead (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
    )
    return invalid("invalid_value", param, message)


async def off_loop_if_large(service: TextService, pooled: Pooled, write: Callable[[Pooled], bytes]) -> bytes:
    """`write(pooled)`, on a worker thread where it would hold up the event loop."""
    if pooled.vectors.size <= _INLINE_VALUES:
        return write(pooled)
    return await asyncio.get_running_loop().run_in_executor(service.workers, write, pooled)
