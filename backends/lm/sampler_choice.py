"""One token from one row of logits, on the CPU, without ever sorting the vocabulary.

Rows are float32 of the vocabulary's length; where a logit is -inf the token cannot be drawn. Tokens of equal logit
are ordered by id, so that every set of candidates is well defined.
"""

import numpy as np

NO_TOKEN = -1
"""Stands for a row from which nothing can be drawn: it holds NaN or +inf, or no token is allowed."""

# Rows are looked at as this many stripes, whose columns are groups of tokens to pick among before tokens
_STRIPES = 64
_LOWEST = np.finfo(np.float32).min


class RowSampler:
    """Draws from rows of one vocabulary. Owns the working memory, so it belongs to one thread."""

    def __init__(self, vocab_size: int) -> None:
        columns = -(-vocab_size // _STRIPES)
        # weights of the row being drawn from; the padding behind the vocabulary stays 0
        self._padded = np.zeros(columns * _STRIPES, np.float32)
        self._weights = self._padded[:vocab_size]
        self._striped = self._padded.reshape(_STRIPES, columns)

    def draw(self, row: np.ndarray, uniform: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
        """The token at `uniform` of the distribution: softmax(row / temperature), cut by top_k, then top_p, then min_p.

        `temperature` above 0; `top_k` 0, `top_p` 1 and `min_p` 0 cut nothing.
        """
        top = row.max()
        if not np.isfinite(top):
            return NO_TOKEN
        weights = self._weights
        with np.errstate(over="ignore"):  # the lowest logits may leave float32's range: their weight is 0
            np.subtract(row, top, out=weights)
            weights *= np.float32(1.0 / temperature)
            np.exp(weights, out=weights)
        if not top_k and top_p >= 1.0 and min_p <= 0.0:
            return self._draw_from_all(uniform)
        return _draw_from(_candidates(row, weights, top_k, top_p, min_p), weights, uniform)

    def _draw_from_all(self, uniform: float) -> int:
        """Inverse CDF in two steps: the column, then the stripe in it."""
        column, rest = _invert(self._striped.sum(0), uniform)
        stripe, _ = _invert(self._striped[:, column], rest)
        return stripe * self._striped.shape[1] + column


def greedy(row: np.ndarray) -> int:
    """The best token, the first of equals."""
    token = int(row.argmax())
    return token if np.isfinite(row[token]) else NO_TOKEN


def greedy_all(rows: np.ndarray) -> list[int]:
    """`greedy` of each of (N, vocab) rows."""
    tokens = rows.argmax(1)
    finite = np.isfinite(np.take_along_axis(rows, tokens[:, None], 1)[:, 0])
    best: list[int] = np.where(finite, tokens, NO_TOKEN).tolist()
    return best


def top_tokens(row: np.ndarray, count: int) -> np.ndarray:
    """The ids of the `count` highest logits, in order of id; fewer where the others are -inf."""
    found = np.flatnonzero(row >= max(_lower_bound(row, count), _LOWEST))
    return found if len(found) <= count else found[_highest(row[found], count)]


def _lower_bound(row: np.ndarray, count: int) -> np.float32:
    """A value that at least `count` logits reach, close below the count-th highest.

    The maxima of n groups of tokens are n logits, so `count` logits reach the count-th highest maximum.
    """
    columns = len(row) // _STRIPES
    if count > columns:
        return np.float32(np.partition(row, -count)[-count]) if count < len(row) else _LOWEST
    maxima = row[: columns * _STRIPES].reshape(_STRIPES, columns).max(0)
    return np.float32(np.partition(maxima, -count)[-count])


def _highest(values: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` highest of `values`, in order; of equals the first."""
    least = np.partition(values, -count)[-count]
    above = values > least
    equal = np.flatnonzero(values == least)[: count - int(above.sum())]
    above[equal] = True
    return np.flatnonzero(above)


def _candidates(row: np.ndarray, weights: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The ids that may be drawn, in order of id. Never empty: the best token has weight 1."""
    tokens = top_tokens(row, top_k) if top_k else None
    if top_p < 1.0:
        tokens = _nucleus(weights, tokens, top_p)
    if min_p > 0.0:
        tokens = np.flatnonzero(weights >= min_p) if tokens is None else tokens[weights[tokens] >= min_p]
    assert tokens is not None
    return tokens


def _nucleus(weights: np.ndarray, tokens: np.ndarray | None, top_p: float) -> np.ndarray:
    """The fewest of `tokens` (None: all), heaviest first, that hold `top_p` of their weight; in order of id.

    n tokens each lighter than (1 - p) / n of the whole hold less than 1 - p together, so none of them is needed.
    Of the rest only those in the bin where the cut falls are sorted.
    """
    among = weights if tokens is None else weights[tokens]
    total = float(among.sum())
    found = np.flatnonzero(among >= np.float32((1.0 - top_p) * total / len(among) * 0.999))
    values = among[found]
    bins = _bins(values)
    above = np.cumsum(np.bincount(bins, weights=values)[::-1])[::-1]  # above[b]: the weight in bin b and all heavier
    target = min(top_p * total, float(above[0]))  # of sums rounded differently the smaller: it is always reached
    edge = int(np.count_nonzero(above >= target)) - 1
    inside = np.flatnonzero(bins == edge)
    heavier = float(above[edge + 1]) if edge + 1 < len(above) else 0.0
    cumulative = heavier + np.cumsum(np.sort(values[inside])[::-1], dtype=np.float64)
    count = min(int(np.searchsorted(cumulative, target)) + 1, len(inside))
    kept = bins > edge
    kept[inside[_highest(values[inside], count)]] = True
    found = found[kept]
    return found if tokens is None else tokens[found]


def _bins(weights: np.ndarray) -> np.ndarray:
    """Weights in (0, 1] as small integers in the same order: a float32's exponent and its first four digits."""
    return weights.view(np.int32) >> 19


def _draw_from(tokens: np.ndarray, weights: np.ndarray, uniform: float) -> int:
    place, _ = _invert(weights[tokens], uniform)
    return int(tokens[place])


def _invert(weights: np.ndarray, uniform: float) -> tuple[int, float]:
    """Where `uniform` falls among `weights` side by side, and how far into that one it falls (in [0, 1))."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = uniform * cumulative[-1]
    place = int(np.searchsorted(cumulative, target, side="right"))
    if place == len(weights):  # rounding: the last one that has weight
        place = int(np.flatnonzero(weights)[-1])
    start = cumulative[place - 1] if place else 0.0
    return place, min(max((target - start) / float(weights[place]), 0.0), 1.0)
