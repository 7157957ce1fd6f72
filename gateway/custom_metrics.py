"""Metrics that custom models define, for /metrics: families of one name from several models are written as one."""

from collections.abc import Iterable, Iterator

from backends.api.base import LiveModel
from backends.python.custom_metrics import CustomMetrics, Family, Series
from gateway.exposition import Sample, render


def custom_families(models: Iterable[LiveModel]) -> Iterator[str]:
    """Labels are the model's own, as in Triton."""
    families: dict[str, tuple[Family, list[Sample]]] = {}
    for model in models:
        metrics = getattr(model, "custom_metrics", None)
        for family in metrics.snapshot() if isinstance(metrics, CustomMetrics) else ():
            known, samples = families.setdefault(family.name, (family, []))
            if known.kind == family.kind:
                for series in family.series.values():
                    samples += _samples(family.kind, series)
    for family, samples in families.values():
        if samples:
            yield render(family.name, family.kind, _one_line(family.description), samples)


def _samples(kind: str, series: Series) -> Iterator[Sample]:
    if kind != "histogram":
        yield Sample(series.labels, series.value)
        return
    total = 0
    for bound, count in zip((*series.buckets, None), series.counts, strict=True):
        total += count
        le = "+Inf" if bound is None else f"{bound:g}"
        yield Sample({**series.labels, "le": le}, total, "_bucket")
    yield Sample(series.labels, series.value, "_sum")
    yield Sample(series.labels, total, "_count")


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
