"""Every metric of the server, in one file.

`nv_*` are Triton's names, made at scrape time from each model's statistics, so the hot path pays nothing for them.
`vllm:*` are vLLM's names for the token engine, so that dashboards made for it read ours; buckets of
inter-token latency start at 0.5 ms, where vLLM's start at 10.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import FinishReason, GenerateRequest
from backends.api.statistics import LATENCY_BOUNDS, Counts, Duration, Latencies, ModelStatistics
from gateway.custom_metrics import custom_families
from gateway.exposition import Sample, render
from scheduler.engine_observer import EngineObserver
from scheduler.frames import EngineStats, StepFrame

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1,
    2.5,
    5,
    10,
    40,
)
_LATENCY = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_LENGTH = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))
_LABELS = ("model_name", "engine")
_ENDS = ("stop", "length", "abort", "error")


class Metrics:
    """The registry's owner. `models` names the live models at scrape time."""

    def __init__(self, models: Callable[[], Iterable[LiveModel]]) -> None:
        self._models = models
        self._registry = CollectorRegistry()
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series beside each counter doubles a scrape for nothing
        self.engines = EngineMetrics(self._registry)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        models = list(self._models())
        own = prometheus.generate_latest(self._registry).decode()
        return own + "".join(_triton_families(models)) + "".join(custom_families(models))

    def routes(self) -> list[BaseRoute]:
        async def scrape(request: Request) -> Response:
            return Response(self.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

        return [Route("/metrics", scrape), Route("/metrics/", scrape)]


class EngineMetrics:
    """The token engines' metrics under vLLM's names, labelled by model and engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, _LABELS, registry=registry)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"vllm:{name}", text, (*_LABELS, *more), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", text, _LABELS, registry=registry, buckets=buckets)

        self.running = gauge("num_requests_running", "Requests in the engine's batch")
        self.waiting = gauge("num_requests_waiting", "Requests waiting to be scheduled")
        self.cache_usage = gauge("kv_cache_usage_perc", "Share of cache blocks held by requests, 0 to 1")
        self.preemptions = counter("num_preemptions", "Sequences whose blocks were taken back to be computed again")
        self.cache_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self.cache_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens computed")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens proposed")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self.finished = counter("request_success", "Ended requests by how they ended", "finished_reason")
        self.step_tokens = histogram("iteration_tokens_total", "Tokens computed in a step", _LENGTH)
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first token", _TTFT)
        self.inter_token = histogram("inter_token_latency_seconds", "Between two tokens of a request", _ITL)
        self.end_to_end = histogram("e2e_request_latency_seconds", "From arrival to the end", _LATENCY)
        self.queue_time = histogram("request_queue_time_seconds", "From arrival to the first step", _LATENCY)
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "From the first step to the first token", _LATENCY
        )
        self.decode_time = histogram("request_decode_time_seconds", "From the first token to the last", _LATENCY)
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request", _LENGTH)
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Generated tokens of a request", _LENGTH
        )

    def observer(self, config: ModelConfig, version: str) -> EngineObserver:
        """Who feeds these metrics for one engine."""
        return _EngineWatch(self, config.name, version)


class _EngineWatch(EngineObserver):
    """One engine's children of the metrics, looked up once."""

    def __init__(self, metrics: EngineMetrics, model: str, version: str) -> None:
        self._metrics = metrics
        self._model = model
        self._labels = labels = (model, version)
        self._stats = EngineStats()
        self._running = metrics.running.labels(*labels)
        self._waiting = metrics.waiting.labels(*labels)
        self._cache_usage = metrics.cache_usage.labels(*labels)
        self._counters = [
            (name, counter.labels(*labels))
            for name, counter in (
                ("num_preemptions_total", metrics.preemptions),
                ("num_cache_queries_total", metrics.cache_queries),
                ("num_cache_hits_total", metrics.cache_hits),
                ("num_prompt_tokens_total", metrics.prompt_tokens),
                ("num_generation_tokens_total", metrics.generation_tokens),
                ("num_drafts_total", metrics.draft_tokens),
                ("num_accepted_drafts_total", metrics.accepted_tokens),
            )
        ]
        self._step_tokens = metrics.step_tokens.labels(*labels)
        self._inter_token = metrics.inter_token.labels(*labels)
        self._first_token = metrics.first_token.labels(*labels)
        for end in _ENDS:
            metrics.finished.labels(*labels, end)

    def state(self, state: str, reason: str) -> None:
        if state != "ready":
            self._gauges(EngineStats())
        self._stats = EngineStats()

    def step(self, frame: StepFrame) -> None:
        for name, counter in self._counters:
            grown = getattr(frame.stats, name) - getattr(self._stats, name)
            if grown:
                counter.inc(grown)
        self._stats = frame.stats
        self._gauges(frame.stats)
        if frame.stats.step_tokens:
            self._step_tokens.observe(frame.stats.step_tokens)

    def tokens(self, request: GenerateRequest, count: int, gap: float | None) -> None:
        if gap is None:
            self._first_token.observe(request.times.first_token - request.arrived)
            return
        for _ in range(count):
            self._inter_token.observe(gap / count)

    def ended(self, request: GenerateRequest, num_tokens: int, end: FinishReason | ServingError) -> None:
        metrics, labels, times = self._metrics, self._labels, request.times
        reason = _end_word(end)
        metrics.finished.labels(*labels, reason).inc()
        metrics.request_prompt_tokens.labels(*labels).observe(len(request.prompt))
        metrics.request_generation_tokens.labels(*labels).observe(num_tokens)
        now = time.monotonic()
        queued = (times.scheduled or now) - request.arrived
        metrics.queue_time.labels(*labels).observe(queued)
        metrics.end_to_end.labels(*labels).observe(now - request.arrived)
        if times.first_token:
            metrics.prefill_time.labels(*labels).observe(times.first_token - times.scheduled)
            metrics.decode_time.labels(*labels).observe(times.last_token - times.first_token)

    def _gauges(self, stats: EngineStats) -> None:
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        held = stats.num_blocks - stats.num_free_blocks
        self._cache_usage.set(held / stats.num_blocks if stats.num_blocks else 0.0)


def _end_word(end: FinishReason | ServingError) -> str:
    if isinstance(end, FinishReason):
        return end.value
    return "abort" if end.code is Code.CANCELLED else "error"


# Triton's counters: name, help, value of a model's counts
_COUNTERS: tuple[tuple[str, str, Callable[[Counts], float]], ...] = (
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
_CACHE_COUNTERS: tuple[tuple[str, str, Callable[[Counts], float]], ...] = (
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
class _Measured:
    """One model version at scrape time."""

    labels: dict[str, str]
    counts: Counts
    num_waiting: int
    has_cache: bool

    @classmethod
    def of(cls, model: LiveModel) -> "_Measured | None":
        """None for a model that keeps no statistics."""
        statistics = getattr(model, "statistics", None)
        if not isinstance(statistics, ModelStatistics):
            return None
        tags = {f"_{key}": value for key, value in model.config.metric_tags.items()}
        labels = {"model": model.config.name, "version": model.version, **tags}
        waiting = getattr(model, "num_waiting", 0)
        return cls(labels, statistics.snapshot(), waiting, model.config.response_cache)


def _triton_families(models: Iterable[LiveModel]) -> Iterable[str]:
    measured = [found for model in models if (found := _Measured.of(model)) is not None]
    for name, text, value in _COUNTERS:
        yield render(name, "counter", text, [Sample(each.labels, value(each.counts)) for each in measured])
    for name, text, value in _CACHE_COUNTERS:
        yield render(
            name, "counter", text, [Sample(each.labels, value(each.counts)) for each in measured if each.has_cache]
        )
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
    yield _histogram(
        "tidegate_inference_request_duration_seconds",
        "From arrival to answer, of successful requests",
        [(each.labels, each.counts.request_latencies) for each in measured],
    )
    yield _histogram(
        "tidegate_inference_queue_duration_seconds",
        "From arrival in the queue to execution, of successful requests",
        [(each.labels, each.counts.queue_latencies) for each in measured],
    )


def _histogram(name: str, text: str, series: Iterable[tuple[dict[str, str], Latencies]]) -> str:
    samples: list[Sample] = []
    for labels, latencies in series:
        total = 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS), "+Inf"), latencies.counts, strict=True):
            total += count
            samples.append(Sample({**labels, "le": bound}, total, "_bucket"))
        samples.append(Sample(labels, latencies.seconds, "_sum"))
        samples.append(Sample(labels, total, "_count"))
    return render(name, "histogram", text, samples)
