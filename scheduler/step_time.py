"""How long a step takes, learned from the steps, and how much prefill a step may carry so that streams keep their pace.

t = a + b * tokens + c * pairs: a for reading the weights, b for each token's products, c for each query-key pair that
attention looks at. A decoding sequence of context n has 1 token and n pairs; a chunk of m tokens that ends at
context n has m * (n - (m - 1) / 2) pairs.
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np

_FORGET = 0.98  # weight of a sample against the next one of its kind
_PRIOR_WEIGHT = 1e-3
_OUTLIER = 3.0  # a step this many times slower than predicted says more about its neighbours than about itself
_WARM_SAMPLES = 8
_SCALE = np.array([1.0, 1e-2, 1e-5])  # brings the three features to one order of magnitude
_PRIOR = (5e-3, 5e-4, 2e-8)  # seconds; a guess for a small model on two cores, forgotten with the first steps


def num_pairs(count: int, context: int) -> float:
    """Query-key pairs of `count` tokens, the last of which sees `context` tokens."""
    return count * (context - (count - 1) / 2)


@dataclass(slots=True)
class _Moments:
    """Decayed sums of x xT and x t, weighted by 1 / t^2 so that a relative error counts alike in short and long steps."""

    xx: np.ndarray = field(default_factory=lambda: np.zeros((3, 3)))
    xt: np.ndarray = field(default_factory=lambda: np.zeros(3))

    def add(self, x: np.ndarray, seconds: float) -> None:
        weight = 1.0 / (seconds * seconds)
        self.xx = self.xx * _FORGET + np.outer(x, x) * weight
        self.xt = self.xt * _FORGET + x * (seconds * weight)


class StepTimeModel:
    """Fits the three coefficients online.

    Steps with and without prefill are remembered apart, so that an hour of decoding does not make it forget what
    prefill costs. Coefficients are never negative.
    """

    def __init__(self) -> None:
        self._kinds = (_Moments(), _Moments())
        self._num_samples = 0
        self._coefficients: tuple[float, float, float] | None = _PRIOR

    def observe(self, tokens: int, pairs: float, seconds: float, *, has_prefill: bool) -> None:
        if seconds <= 0:
            return
        if self._num_samples >= _WARM_SAMPLES:
            seconds = min(seconds, _OUTLIER * self.predict(tokens, pairs))
        self._kinds[has_prefill].add(np.array([1.0, tokens, pairs]) * _SCALE, seconds)
        self._num_samples += 1
        self._coefficients = None

    def predict(self, tokens: int, pairs: float) -> float:
        """Seconds of a step of so many tokens and query-key pairs."""
        a, b, c = self.coefficients
        return a + b * tokens + c * pairs

    def largest_chunk(self, seconds: float, context: int) -> float:
        """The most tokens that can be added in `seconds` for a sequence with `context` tokens computed."""
        _, b, c = self.coefficients
        per_token = b + c * context
        if per_token <= 0:
            return inf
        # b m + c (context m + m^2 / 2) = seconds
        half = c / 2
        if half * seconds < 1e-12 * per_token * per_token:
            return seconds / per_token
        return float((per_token**2 + 4 * half * seconds) ** 0.5 - per_token) / (2 * half)

    @property
    def seconds_per_token(self) -> float:
        """What one more prompt token costs, attention aside."""
        return self.coefficients[1]

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """a, b, c in seconds."""
        if self._coefficients is None:
            self._coefficients = self._fit()
        return self._coefficients

    def _fit(self) -> tuple[float, float, float]:
        decode, prefill = self._kinds
        xx, xt = decode.xx + prefill.xx, decode.xt + prefill.xt
        # The prior weighs a little against the total, in each direction: it decides only what nothing was seen of.
        ridge = np.diag(np.full(3, _PRIOR_WEIGHT * np.trace(xx) / 3 + 1e-12))
        xx, xt = xx + ridge, xt + ridge @ (np.array(_PRIOR) / _SCALE)
        active = [0, 1, 2]
        solution = np.zeros(3)
        while active:
            part = np.linalg.solve(xx[np.ix_(active, active)], xt[active])
            if (part >= 0).all():
                solution[active] = part
                break
            active.pop(int(part.argmin()))
        a, b, c = (solution * _SCALE).tolist()
        return a, b, c
