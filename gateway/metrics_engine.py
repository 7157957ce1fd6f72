"""The token engines' metrics, under vLLM's names, so that dashboards made for it read ours.

Buckets of inter-token latency start at 0.5 ms, where vLLM's start at 10.
"""

import time
from collections import defaultdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import FinishReason, GenerateRequest
from gateway.counted_histogram import CountedHistogram
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
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that began to answer, cached or not")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens proposed")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self.finished = counter("request_success", "Ended requests by how they ended", "finished_reason")
        self.step_tokens = histogram("iteration_tokens_total", "Tokens computed in a step", _LENGTH)
        self.first_token = histogram("time_to_first_token_seconds", "From arrival to the first token", _TTFT)
        self.inter_token = CountedHistogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a request", _LABELS, _ITL, registry
        )
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
        self._gaps: defaultdict[float, int] = defaultdict(int)  # of the step that is being delivered
        self._first_token = metrics.first_token.labels(*labels)
        for end in _ENDS:
            metrics.finished.labels(*labels, end)

    def state(self, state: str, reason: str) -> None:
        if state != "ready":
            self._gauges(EngineStats())
        self._stats = EngineStats()

    def step(self, frame: StepFrame) -> None:
        for gap, count in self._gaps.items():
            self._inter_token.observe(gap, count)
        self._gaps.clear()
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
        self._gaps[gap / count] += count  # streams that ran side by side in two steps have the same gap

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
