"""Rows to a request of a pooling engine, and its answer to vectors."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.request import GenerateRequest, Pooling, SamplingParams
from backends.pooling.runner import Row

MAX_TOKENS = 300_000
"""Of one request, as OpenAI has it."""
_NO_SAMPLING = SamplingParams(max_tokens=0)


def pooling_request(
    request_id: str, rows: Sequence[Row], *, priority: int = 0, deadline: float | None = None
) -> GenerateRequest:
    """All `rows` in one request."""
    return GenerateRequest(
        id=request_id,
        prompt=list(chain.from_iterable(row.tokens for row in rows)),
        sampling=_NO_SAMPLING,
        priority=priority,
        deadline=deadline,
        pooling=Pooling([len(row.tokens) for row in rows], [row.second for row in rows]),
    )


async def read_vectors(request: GenerateRequest) -> np.ndarray:
    """(rows, dimension) float32 of a request that an engine has taken.

    Raises the ServingError of a failed stream, and INTERNAL for values that no JSON can hold.
    """
    assert request.pooling is not None
    async for event in request.stream:
        vectors = np.frombuffer(event.vectors, np.float32).reshape(len(request.pooling.lengths), -1)
        if not np.isfinite(vectors).all():
            raise ServingError(Code.INTERNAL, "the model's result is not finite: its numbers overflow in this dtype")
        return vectors
    raise ServingError(Code.INTERNAL, "the engine's stream ended without vectors")


def check_lengths(rows: Sequence[Row], max_model_len: int, params: Sequence[str]) -> None:
    """Raise ServingError(INVALID) for a row that is too long or has no tokens, and for too many tokens together; `params`
    say where each row came from."""
    for row, param in zip(rows, params, strict=True):
        length = len(row.tokens)
        if not length:
            raise ServingError(
                Code.INVALID, f"'{param}': expected at least one token", param=param, reason="invalid_value"
            )
        if length > max_model_len:
            message = (
                f"This model's maximum context length is {max_model_len} tokens, but '{param}' has {length} tokens."
            )
            raise ServingError(Code.INVALID, message, param=param, reason="context_length_exceeded")
    total = sum(len(row.tokens) for row in rows)
    if total > MAX_TOKENS:
        param = params[0].partition("[")[0]
        message = f"'{param}' has {total} tokens: expected at most {MAX_TOKENS} in one request"
        raise ServingError(Code.INVALID, message, param=param, reason="max_tokens_per_request")
