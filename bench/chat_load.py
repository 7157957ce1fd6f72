"""What a load run sends and what its times say: pure functions, no clock and no socket."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request. `shared` of the `prompt` tokens are the same in every request of a run."""

    prompt: int
    output: int
    shared: int = 0


@dataclass(slots=True)
class Call:
    """One finished request. Times in seconds: `sent` and `events` on one clock, an event being a chunk with text."""

    sent: float
    events: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.error and bool(self.events)

    @property
    def first(self) -> float:
        """Time to first token."""
        return self.events[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: an event may carry several tokens, and its gap then counts once."""
        return [after - before for before, after in pairwise(self.events)]


def token_prompts(shape: Shape, low: int, high: int, seed: int) -> Iterator[list[int]]:
    """Prompts of token ids in [low, high), all different behind their shared beginning."""
    draw = random.Random(seed)
    shared = [draw.randrange(low, high) for _ in range(shape.shared)]
    while True:
        yield shared + [draw.randrange(low, high) for _ in range(shape.prompt - shape.shared)]


def word_prompts(num_words: int, num_shared: int, seed: int) -> Iterator[str]:
    """Prompts of short words, all different behind their shared beginning."""
    draw = random.Random(seed)

    def words(count: int) -> list[str]:
        return [_WORDS[draw.randrange(len(_WORDS))] for _ in range(count)]

    shared = words(num_shared)
    while True:
        yield " ".join(shared + words(num_words - num_shared))


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """When each of `count` requests is sent in an open loop: a Poisson process of `rate` requests a second."""
    draw = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += draw.expovariate(rate)
        times.append(now)
    return times


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)] if ordered else 0.0


def summary(calls: Sequence[Call], end: float) -> dict[str, float]:
    """A run in numbers; `end` is when its last answer was complete. Times in milliseconds, rates a second."""
    good = [call for call in calls if call.is_good]
    wall = end - min((call.sent for call in calls), default=end)
    gaps = [gap for call in good for gap in call.gaps]
    firsts = [call.first for call in good]
    return {
        "requests": len(calls),
        "errors": len(calls) - len(good),
        "seconds": wall,
        "requests_per_s": len(good) / wall if wall else 0.0,
        "tokens_per_s": sum(call.completion_tokens for call in good) / wall if wall else 0.0,
        "prompt_tokens": _mean([call.prompt_tokens for call in good]),
        "cached_tokens": _mean([call.cached_tokens for call in good]),
        "completion_tokens": _mean([call.completion_tokens for call in good]),
        **_spread("ttft_ms", firsts),
        **_spread("itl_ms", gaps),
        **_spread("e2e_ms", [call.events[-1] - call.sent for call in good]),
    }


def over_runs(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Each number's median over the runs, with its smallest and largest value."""
    return {
        name: {
            "median": percentile([run[name] for run in runs], 50),
            "min": min(run[name] for run in runs),
            "max": max(run[name] for run in runs),
        }
        for name in runs[0]
    }


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    found = {f"{name}_p{percent}": percentile(seconds, percent) * 1000 for percent in (50, 90, 99)}
    return {**found, f"{name}_max": max(seconds, default=0.0) * 1000}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


_WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world"),
    *("school", "state", "family", "hand", "part", "place", "case", "week", "point", "house"),
)
