"""How well texts fit together: POST /v1/rerank and /v1/score, in the shapes of Jina, Cohere and vLLM.

A cross-encoder reads each pair; an embedding model's vectors are compared by their cosine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import orjson

from openai_api.errors import invalid
from openai_api.exchange import Exchange
from openai_api.fields import INT64_MAX, Fields
from openai_api.json_body import parse_object
from openai_api.model import PoolingTextModel
from openai_api.pooling import Pooled, Prepared, pool, rows_of, truncation
from openai_api.pooling_fields import RowOptions, read_options, read_text, read_texts
from openai_api.text_endpoints import TextService
from openai_api.wire import log_unread


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one side of the pairs, and where each stands in the body."""

    texts: list[str]
    params: list[str]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class Pairs:
    """`firsts` has one text for all of `seconds`, or one for each."""

    firsts: Texts
    seconds: Texts

    def as_list(self) -> list[tuple[str, str]]:
        firsts = self.firsts.texts * (len(self.seconds) if len(self.firsts) == 1 else 1)
        return list(zip(firsts, self.seconds.texts, strict=True))


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """`top_n` 0: all."""

    options: RowOptions
    pairs: Pairs
    top_n: int
    shows_documents: bool


async def serve_rerank(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /v1/rerank"""
    request = await service.off_loop(body, partial(read_rerank, body))
    pooled, scores = await _scores(service, exchange, body, request.options, request.pairs, "rerank-")
    documents = request.pairs.seconds.texts
    order = best_first(scores, request.top_n)
    results: list[dict[str, object]] = [{"index": index, "relevance_score": float(scores[index])} for index in order]
    if request.shows_documents:
        results = [
            result | {"document": {"text": documents[index]}} for result, index in zip(results, order, strict=True)
        ]
    identity = pooled.identity
    answer = {"id": identity.id, "model": identity.model, "usage": pooled.usage, "results": results}
    await exchange.answer(orjson.dumps(answer))


async def serve_score(service: TextService, exchange: Exchange, body: bytes) -> None:
    """POST /v1/score"""
    options, pairs = await service.off_loop(body, partial(read_score, body))
    pooled, scores = await _scores(service, exchange, body, options, pairs, "score-")
    identity = pooled.identity
    data = [{"index": index, "object": "score", "score": float(score)} for index, score in enumerate(scores)]
    answer = {"id": identity.id, "object": "list", "created": identity.created, "model": identity.model}
    await exchange.answer(orjson.dumps(answer | {"data": data, "usage": pooled.usage}))


def read_rerank(body: bytes) -> RerankRequest:
    """Raises ServingError for a wrong member."""
    fields = Fields(parse_object(body))
    query = fields.raw("query")
    if query is None:
        raise fields.missing("query")
    documents = fields.raw("documents")
    if documents is not None and not isinstance(documents, list):
        fields.array("documents", read_text, 1)  # says what is wrong with it
    pairs = Pairs(Texts([read_text(query, "query")], ["query"]), Texts(*read_texts(fields, "documents")))
    request = RerankRequest(
        options=read_options(fields),
        pairs=pairs,
        top_n=fields.integer("top_n", 0, INT64_MAX) or 0,
        shows_documents=fields.flag("return_documents", True),
    )
    log_unread(fields)
    return request


def read_score(body: bytes) -> tuple[RowOptions, Pairs]:
    """Raises ServingError for a wrong member."""
    fields = Fields(parse_object(body))
    firsts, seconds = (Texts(*read_texts(fields, name)) for name in ("text_1", "text_2"))
    if len(firsts) not in (1, len(seconds)):
        message = f"'text_1': expected one text, or {len(seconds)} as in 'text_2', got {len(firsts)}"
        raise invalid("invalid_value", "text_1", message)
    options = read_options(fields)
    log_unread(fields)
    return options, Pairs(firsts, seconds)


async def _scores(
    service: TextService, exchange: Exchange, body: bytes, options: RowOptions, pairs: Pairs, id_prefix: str
) -> tuple[Pooled, np.ndarray]:
    """A score a pair, float32."""
    prepare = partial(_prepare, options=options, pairs=pairs)
    pooled = await pool(service, exchange, body, options, prepare, id_prefix=id_prefix)
    if pooled.model.description.task == "score":
        return pooled, pooled.vectors[:, 0]
    return pooled, cosines(pooled.vectors[: len(pairs.firsts)], pooled.vectors[len(pairs.firsts) :])


def _prepare(model: PoolingTextModel, options: RowOptions, pairs: Pairs) -> Prepared:
    if model.description.task == "score":
        rows = model.tokenizer.encode_pairs(pairs.as_list(), truncation(options, model))
        return Prepared(rows, pairs.seconds.params)
    texts = pairs.firsts.texts + pairs.seconds.texts
    params = pairs.firsts.params + pairs.seconds.params
    return Prepared(rows_of(model, options, texts, params), params)


def cosines(firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Of one first row, or one for each, with each second row."""
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    products: np.ndarray = np.sum(firsts * seconds, axis=1) / np.maximum(lengths, np.float32(1e-12))
    return products


def best_first(scores: Sequence[float] | np.ndarray, top_n: int) -> list[int]:
    """The indices of the best scores, equal ones in their order; all of them with `top_n` 0."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    return [int(index) for index in order[: top_n or None]]
