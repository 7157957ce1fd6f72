"""How long a step takes, learned from the steps, and how much prefill a step may carry so that streams keep their pace.

t = a + b * tokens + c * pairs: a for reading the weights, b for each token's products, c for each query-key pair that
attention looks at. A decoding sequence of context n has 1 token and n pairs; a chunk of m tokens that ends at
context n has m * (n - (m - 1) / 2) pairs.
"""

from math import inf

import numpy as np

_FORGET = 0.98  # weight of a sample against the next one of its kind
_PRIOR_WEIGHT = 1e-3
_OUTLIER = 3.0  # a step this many times slower than predicted says more about its neighbours than about itself
_WARM_SAMPLES = 8
_REFIT = 64  # samples
_TOKENS, _PAIRS = 1e-2, 1e-5  # bring the features to one order of magnitude
_SCALE = np.array([1.0, _TOKENS, _PAIRS])
_PRIOR = (5e-3, 5e-4, 2e-8)  # seconds; a guess for a small model on two cores, forgotten with the first steps


def num_pairs(count: int, context: int) -> float:
    """Query-key pairs of `count` tokens, the last of which sees `context` tokens."""
    return count * (context - (count - 1) / 2)


class _Moments:
    """Decayed sums of x xT (its upper triangle) and x t, weighted by 1 / t^2: a relative error counts alike in all steps.

    Plain numbers, since this is done in every step.
    """

    __slots__ = ("t", "xx")

    def __init__(self) -> None:
        self.xx = (0.0,) * 6
        self.t = (0.0,) * 3

    def add(self, y: float, z: float, seconds: float) -> None:
        """A step of features (1, y, z)."""
        w = 1.0 / (seconds * seconds)
        f, wy, wz, wt = _FORGET, w * y, w * z, w * seconds
        n, sy, sz, yy, yz, zz = self.xx
        self.xx = (n * f + w, sy * f + wy, sz * f + wz, yy * f + wy * y, yz * f + wy * z, zz * f + wz * z)
        t, ty, tz = self.t
        self.t = (t * f + wt, ty * f + wt * y, tz * f + wt * z)


class StepTimeModel:
    """Fits the three coefficients online.

    Steps with and without prefill are remembered apart, so that an hour of decoding does not make it forget what
    prefill costs. Coefficients are never negative.
    """

    def __init__(self) -> None:
        self._kinds = (_Moments(), _Moments())
        self._num_samples = 0
        self._num_fitted = 0  # samples that the coefficients know of
        self._coefficients = _PRIOR

    def observe(self, tokens: int, pairs: float, seconds: float, *, has_prefill: bool) -> None:
        """Learn from a step that took `seconds`; below a microsecond the clock says nothing."""
        seconds = max(seconds, 1e-6)
        if self._num_samples >= _WARM_SAMPLES:
            # an outlier is recognised well enough by coefficients that are a few steps old
            if self._num_samples - self._num_fitted >= _REFIT:
                self._fit()
            a, b, c = self._coefficients
            seconds = min(seconds, _OUTLIER * (a + b * tokens + c * pairs) + 1e-6)
        self._kinds[has_prefill].add(tokens * _TOKENS, pairs * _PAIRS, seconds)
        self._num_samples += 1

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
        """What one more prompt token costs, attention aside, as of the last fit."""
        return self._coefficients[1]

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """a, b, c in seconds."""
        if self._num_fitted != self._num_samples:
            self._fit()
        return self._coefficients

    def _fit(self) -> None:
        decode, prefill = self._kinds
        n, sy, sz, yy, yz, zz = (u + v for u, v in zip(decode.xx, prefill.xx, strict=True))
        xx = np.array([[n, sy, sz], [sy, yy, yz], [sz, yz, zz]])
        xt = np.array(decode.t) + np.array(prefill.t)
        # The prior weighs a little against the total, in each direction: it decides only what nothing was seen of.
        ridge = _PRIOR_WEIGHT * float(np.trace(xx)) / 3
        xx += np.eye(3) * ridge
        xt += ridge * np.array(_PRIOR) / _SCALE
        a, b, c = _non_negative_solution(xx, xt) * _SCALE
        self._coefficients = (float(a), float(b), float(c))
        self._num_fitted = self._num_samples


def _non_negative_solution(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The solution of a positive definite system, without those unknowns that would come out negative."""
    active = list(range(len(vector)))
    solution = np.zeros(len(vector))
    while active:
        part = np.linalg.solve(matrix[np.ix_(active, active)], vector[active])
        if (part >= 0).all():
            solution[active] = part
            break
        active.pop(int(part.argmin()))
    return solution
