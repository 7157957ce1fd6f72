"""A histogram that takes many equal values at once, as a step of an engine brings them."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Series:
    """One set of labels. Written by one thread."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last beyond all bounds
        self.total = 0.0

    def observe(self, value: float, count: int) -> None:
        self.counts[bisect_left(self._bounds, value)] += count
        self.total += value * count


class CountedHistogram(Collector):
    """Like prometheus_client's Histogram, which takes values one by one."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._head = name, text, labels
        self._buckets = tuple(buckets)
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Series:
        return self._series.setdefault(values, Series(self._buckets))

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._head
        family = HistogramMetricFamily(name, text, labels=labels)
        bounds = [*map(str, map(float, self._buckets)), "+Inf"]
        for values, series in list(self._series.items()):
            cumulated = accumulate(series.counts)
            family.add_metric(values, list(zip(bounds, map(float, cumulated), strict=True)), series.total)
        yield family
