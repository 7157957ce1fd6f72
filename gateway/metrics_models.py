"""The models' metrics under Triton's names, made at scrape time from each model's statistics: the hot path pays nothing."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from backends.api.base import LiveModel
from backends.api.statistics import LATENCY_BOUNDS, Counts, Duration, Latencies, ModelStatistics
from gateway.exposition import Sample, render

Value = Callable[[Counts], float]

# Triton's counters: name, help, value of a model's counts
_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda c: c.success.count,
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda c: c.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda c: c.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda c: _us(c.success),
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda c: _us(c.queue),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda c: _us(c.compute_input),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda c: _us(c.compute_infer),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda c: _us(c.compute_output),
    ),
)
_CACHE_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda c: c.cache_hit.count),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", lambda c: c.cache_miss.count),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda c: _us(c.cache_hit),
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss duration per model, in microseconds",
        lambda c: _us(c.cache_miss),
    ),
)


def _us(duration: Duration) -> int:
    return duration.ns // 1000


@dataclass(frozen=True, slots=True)
class Measured:
    """One model version at scrape time."""

    labels: dict[str, str]
    counts: Counts
    num_waiting: int
    has_cache: bool
    is_decoupled: bool
    load_seconds: float | None

    @classmethod
    def of(cls, model: LiveModel) -> "Measured | None":
        """None for a model that keeps no statistics."""
        statistics = getattr(model, "statistics", None)
        if not isinstance(statistics, ModelStatistics):
            return None
        config = model.config
        labels = {"model": config.name, "version": model.version}
        if namespace := getattr(model, "namespace", ""):
            labels["namespace"] = namespace
        labels |= {f"_{key}": value for key, value in config.metric_tags.items()}
        return cls(
            labels,
            statistics.snapshot(),
            getattr(model, "num_waiting", 0),
            config.response_cache,
            config.decoupled,
            getattr(model, "load_seconds", None),
        )


def families(measured: list[Measured], *, counter_latencies: bool, histogram_latencies: bool) -> Iterator[str]:
    """All but the summaries. The two flags are those of --metrics-config."""
    for name, text, value in _COUNTERS:
        if counter_latencies or not name.endswith("_us"):
            yield render(name, "counter", text, [Sample(each.labels, value(each.counts)) for each in measured])
    cached = [each for each in measured if each.has_cache]
    for name, text, value in _CACHE_COUNTERS:
        yield render(name, "counter", text, [Sample(each.labels, value(each.counts)) for each in cached])
    yield render(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        [
            Sample({**each.labels, "reason": reason.value}, count)
            for each in measured
            for reason, count in each.counts.failures.items()
        ],
    )
    yield render(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        [Sample(each.labels, each.num_waiting) for each in measured],
    )
    yield render(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        [Sample(each.labels, each.load_seconds) for each in measured if each.load_seconds is not None],
    )
    if histogram_latencies:
        yield _first_responses([each for each in measured if each.is_decoupled])
    yield _histogram(
        "tidegate_inference_request_duration_seconds",
        "From arrival to answer, of successful requests",
        [(each.labels, each.counts.request_latencies) for each in measured],
    )
    yield _histogram(
        "tidegate_inference_queue_duration_seconds",
        "From arrival in the queue to execution",
        [(each.labels, each.counts.queue_latencies) for each in measured],
    )


def _first_responses(measured: Iterable[Measured]) -> str:
    samples: list[Sample] = []
    for each in measured:
        latencies = each.counts.first_responses
        bounds = [f"{bound * 1000:g}" for bound in latencies.bounds]
        samples += _buckets(each.labels, bounds, latencies.counts, latencies.seconds * 1000)
    text = "Duration from request to first response in milliseconds"
    return render("nv_inference_first_response_histogram_ms", "histogram", text, samples)


def _histogram(name: str, text: str, series: Iterable[tuple[dict[str, str], Latencies]]) -> str:
    samples: list[Sample] = []
    for labels, latencies in series:
        samples += _buckets(labels, [str(bound) for bound in LATENCY_BOUNDS], _coarse(latencies), latencies.seconds)
    return render(name, "histogram", text, samples)


def _coarse(latencies: Latencies) -> list[int]:
    """The counts between the published bounds, each of which is one of the fine ones too."""
    counts, start = [], 0
    for bound in LATENCY_BOUNDS:
        stop = latencies.bounds.index(bound) + 1
        counts.append(sum(latencies.counts[start:stop]))
        start = stop
    return [*counts, sum(latencies.counts[start:])]


def _buckets(labels: dict[str, str], bounds: list[str], counts: Iterable[int], total: float) -> list[Sample]:
    samples, count = [], 0
    for bound, more in zip((*bounds, "+Inf"), counts, strict=True):
        count += more
        samples.append(Sample({**labels, "le": bound}, count, "_bucket"))
    return [*samples, Sample(labels, total, "_sum"), Sample(labels, count, "_count")]
