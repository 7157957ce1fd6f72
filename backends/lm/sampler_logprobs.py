"""Log-probabilities of the model's raw distribution: of the chosen token, its rank, and the best ones."""

import numpy as np

from backends.api.request import TokenLogprobs
from backends.lm.sampler_choice import top_tokens


def token_logprobs(row: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """The entry of `token` in a row of raw logits (vocab,) float32, with the `count` best tokens (all where negative).

    The log-probability of `token` and of the best come of the same subtraction, so equal ones are equal floats.
    """
    top = row.max()
    with np.errstate(under="ignore"):
        norm = float(top) + float(np.log(np.exp(row - top).sum(dtype=np.float64)))
    best = _best(row, len(row) if count < 0 else min(count, len(row)))
    rank = int(np.count_nonzero(row > row[token])) + 1
    entries = [(int(index), float(row[index]) - norm) for index in best]
    return TokenLogprobs(token, float(row[token]) - norm, rank, entries)


def _best(row: np.ndarray, count: int) -> np.ndarray:
    """The ids of the `count` highest logits, best first."""
    if not count:
        return np.empty(0, np.int64)
    tokens = top_tokens(row, count)
    return tokens[np.argsort(-row[tokens], kind="stable")]
