"""How long a step takes, learned from the steps, and how much prefill a step may carry so that streams keep their pace.

t = a + b * tokens + c * chunk pairs + d * decode pairs: a for reading the weights, b for each token's products, c and d
for each query-key pair that attention looks at. Its keys and values are read once for the many queries of a chunk, and
for every token that is decoded, which therefore has a coefficient of its own.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

_FORGET = 0.98  # weight of a sample against the next one of its kind
_PRIOR_WEIGHT = 1e-5  # samples: what a coefficient's distance from the prior, in priors, counts as
_RIDGE = 1e-9  # of a feature's own weight: features that were only seen together share what they explain
_OUTLIER = 3.0  # a step this many times slower than predicted says more about its neighbours than about itself
_WARM_SAMPLES = 8
_SCALE = np.array([1.0, 1e-2, 1e-5, 1e-4])  # brings the features to one order of magnitude
_PRIOR = np.array([5e-3, 5e-4, 1e-7, 3e-7])  # seconds; a guess for a small model on two cores, soon forgotten


def num_pairs(count: int, context: int) -> float:
    """Query-key pairs of `count` tokens, the last of which sees `context` tokens."""
    return count * (context - (count - 1) / 2)


@dataclass(slots=True)
class StepLoad:
    """What a step has to compute."""

    tokens: int = 0
    chunk_pairs: float = 0.0
    decode_pairs: float = 0.0

    def add_chunk(self, count: int, context: int) -> None:
        """`count` tokens of a prompt, the last of which sees `context` tokens."""
        self.tokens += count
        self.chunk_pairs += num_pairs(count, context)

    def add_decode(self, count: int, context: int) -> None:
        """A sequence's one token and its drafts, the last of which sees `context` tokens."""
        self.tokens += count
        self.decode_pairs += num_pairs(count, context)


def chunk_load(count: int, context: int) -> StepLoad:
    """A step of nothing but `count` tokens of a prompt, the last of which sees `context` tokens."""
    load = StepLoad()
    load.add_chunk(count, context)
    return load


class Coefficients(NamedTuple):
    """Seconds a step, a token, and a query-key pair of either kind."""

    step: float
    token: float
    chunk_pair: float
    decode_pair: float


class _Moments:
    """Decayed sums of x xT and x t, weighted by 1 / t^2: a relative error counts alike in all steps."""

    def __init__(self) -> None:
        self.xx = np.zeros((4, 4))
        self.xt = np.zeros(4)

    def add(self, load: StepLoad, seconds: float) -> None:
        x = np.array((1.0, load.tokens, load.chunk_pairs, load.decode_pairs)) * (_SCALE / seconds)
        self.xx *= _FORGET
        self.xx += x[:, None] * x
        self.xt *= _FORGET
        self.xt += x


class StepTimeModel:
    """Fits the coefficients online.

    Steps with and without chunks of prompts are remembered apart, so that an hour of decoding does not make it forget
    what prefill costs. Coefficients are never negative.
    """

    def __init__(self) -> None:
        self._decode, self._prefill = _Moments(), _Moments()
        self._num_samples = 0
        self._num_fitted = 0  # samples that the coefficients know of
        self._coefficients = Coefficients(*_PRIOR.tolist())

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took `seconds`; below a microsecond the clock says nothing."""
        seconds = max(seconds, 1e-6)
        # coefficients that are some steps old recognise most steps that are no outliers
        if self._num_samples >= _WARM_SAMPLES and seconds > _OUTLIER * _seconds(self._coefficients, load):
            seconds = min(seconds, _OUTLIER * self.predict(load) + 1e-6)
        (self._prefill if load.chunk_pairs else self._decode).add(load, seconds)
        self._num_samples += 1

    def predict(self, load: StepLoad) -> float:
        """Seconds of a step."""
        return _seconds(self.coefficients, load)

    def largest_chunk(self, seconds: float, context: int) -> float:
        """The most tokens that can be added in `seconds` for a sequence with `context` tokens computed."""
        _, b, c, _ = self.coefficients
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
        return self._coefficients.token

    @property
    def coefficients(self) -> Coefficients:
        if self._num_fitted != self._num_samples:
            self._fit()
        return self._coefficients

    def _fit(self) -> None:
        # Samples count by their relative error, and so does the prior: it decides only what nothing was seen of.
        prior = _PRIOR / _SCALE
        xx = self._decode.xx + self._prefill.xx + np.diag(_PRIOR_WEIGHT / prior**2)
        xt = self._decode.xt + self._prefill.xt + _PRIOR_WEIGHT / prior
        self._coefficients = Coefficients(*(_non_negative_solution(xx, xt) * _SCALE).tolist())
        self._num_fitted = self._num_samples


def _seconds(coefficients: Coefficients, load: StepLoad) -> float:
    a, b, c, d = coefficients
    return a + b * load.tokens + c * load.chunk_pairs + d * load.decode_pairs


def _non_negative_solution(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """The solution of a positive semidefinite system, without those unknowns that would come out negative."""
    scale = 1 / np.sqrt(np.diag(matrix))
    matrix = matrix * scale * scale[:, None] + _RIDGE * np.eye(len(vector))  # its diagonal is all ones, about
    vector = vector * scale
    active = list(range(len(vector)))
    solution = np.zeros(len(vector))
    while active:
        part = np.linalg.solve(matrix[np.ix_(active, active)], vector[active])
        if (part >= 0).all():
            solution[active] = part
            break
        active.pop(int(part.argmin()))
    return solution * scale
