"""Triton's summaries: quantiles of the last minute, read off at scrape time from the models' fine histograms.

A quantile is of what was counted between two scrapes a window apart, or since the last one where they come more
rarely. It is within 3 % of the right value.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import sqrt

from backends.api.statistics import Latencies
from gateway.exposition import Sample, render
from gateway.metrics_models import Measured

_WINDOW = 60.0  # seconds
_SUMMARIES = (
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        "request_latencies",
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        "queue_latencies",
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Summary of inference compute input duration in microseconds (does not include cached requests)",
        "compute_input_latencies",
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Summary of inference compute infer duration in microseconds (does not include cached requests)",
        "compute_infer_latencies",
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Summary of inference compute output duration in microseconds (does not include cached requests)",
        "compute_output_latencies",
    ),
)
_CACHE_SUMMARIES = (
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit duration per model, in microseconds",
        "cache_hit_latencies",
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss duration per model, in microseconds",
        "cache_miss_latencies",
    ),
)

Series = tuple[str, tuple[tuple[str, str], ...]]


class Summaries:
    """Remembers what earlier scrapes saw. Used by one scrape at a time."""

    def __init__(self, quantiles: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        self._quantiles = quantiles
        self._clock = clock
        self._seen: dict[Series, deque[tuple[float, list[int]]]] = {}

    def families(self, measured: Sequence[Measured]) -> Iterator[str]:
        before, self._seen = self._seen, {}
        cached = [each for each in measured if each.has_cache]
        for summaries, models in ((_SUMMARIES, measured), (_CACHE_SUMMARIES, cached)):
            for name, text, attribute in summaries:
                samples: list[Sample] = []
                for each in models:
                    samples += self._samples(name, each.labels, getattr(each.counts, attribute), before)
                yield render(name, "summary", text, samples)

    def _samples(
        self,
        name: str,
        labels: dict[str, str],
        latencies: Latencies,
        before: dict[Series, deque[tuple[float, list[int]]]],
    ) -> Iterator[Sample]:
        series = (name, tuple(sorted(labels.items())))
        seen = self._seen[series] = before.get(series) or deque([(self._clock(), [0] * len(latencies.counts))])
        now = self._clock()
        while len(seen) > 1 and seen[1][0] <= now - _WINDOW:
            seen.popleft()
        old = seen[0][1]
        if any(earlier > count for count, earlier in zip(latencies.counts, old, strict=True)):  # loaded anew
            old = [0] * len(old)
        recent = [count - earlier for count, earlier in zip(latencies.counts, old, strict=True)]
        seen.append((now, list(latencies.counts)))
        for quantile in self._quantiles:
            value = quantile_of(quantile, latencies.bounds, recent)
            yield Sample({**labels, "quantile": f"{quantile:g}"}, value * 1e6)
        yield Sample(labels, latencies.seconds * 1e6, "_sum")
        yield Sample(labels, sum(latencies.counts), "_count")


def quantile_of(quantile: float, bounds: Sequence[float], counts: Sequence[int]) -> float:
    """The value below which that share of `counts` lies, the middle of its bucket; NaN of nothing."""
    total, reached = sum(counts), 0
    if not total:
        return float("nan")
    for index, count in enumerate(counts):
        reached += count
        if count and reached >= quantile * total:
            low = bounds[index - 1] if index else bounds[0] / 2
            high = bounds[index] if index < len(bounds) else low
            return sqrt(low * high)
    return bounds[-1]
