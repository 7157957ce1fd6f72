"""What a scrape shows of models and engines."""

import re
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import FinishReason, GenerateRequest, InferenceRequest, SamplingParams, Times
from backends.api.statistics import Failure, ModelStatistics
from gateway.metrics import Metrics
from scheduler.frames import EngineStats, StepFrame


@dataclass
class CountedModel:
    """A live model that has only its statistics."""

    config: ModelConfig
    version: str = "1"
    num_waiting: int = 3
    statistics: ModelStatistics = field(default_factory=ModelStatistics)

    def infer(self, request: InferenceRequest) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


def values(metrics: Metrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Samples of one exact name, from the lines themselves: labels -> value."""
    found = {}
    for line in metrics.text().splitlines():
        match = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
        if match:
            labels = re.findall(r'(\w+)="([^"]*)"', match.group(1) or "")
            found[tuple(sorted(labels))] = float(match.group(2))
    return found


def one(metrics: Metrics, name: str) -> float:
    (value,) = values(metrics, name).values()
    return value


@pytest.fixture
def model() -> CountedModel:
    return CountedModel(ModelConfig(name="m", metric_tags={"team": "a"}, response_cache=True))


def test_a_model_s_counts_have_triton_s_names_labels_and_microseconds(model: CountedModel) -> None:
    times = Times(
        received=1.0, queued=1.0, compute_start=1.1, compute_input_end=1.2, compute_output_start=1.4, compute_end=1.5
    )
    model.statistics.executed(2, times)
    model.statistics.succeeded([times])
    model.statistics.failed(Failure.REJECTED)
    metrics = Metrics(lambda: [model])
    labels = (("_team", "a"), ("model", "m"), ("version", "1"))
    assert values(metrics, "nv_inference_request_success") == {labels: 1}
    assert one(metrics, "nv_inference_count") == 2
    assert one(metrics, "nv_inference_exec_count") == 1
    assert one(metrics, "nv_inference_request_duration_us") == pytest.approx(500_000, abs=1)
    assert one(metrics, "nv_inference_queue_duration_us") == pytest.approx(100_000, abs=1)
    assert one(metrics, "nv_inference_pending_request_count") == 3
    failures = values(metrics, "nv_inference_request_failure")
    assert {dict(key)["reason"]: value for key, value in failures.items()} == {
        "REJECTED": 1,
        "CANCELED": 0,
        "BACKEND": 0,
        "OTHER": 0,
    }


def test_latency_histograms_count_each_request_once_in_growing_buckets(model: CountedModel) -> None:
    for seconds in (0.0002, 0.02, 100.0):
        times = Times(received=1.0, queued=1.0, compute_start=1.0, compute_end=1.0 + seconds)
        model.statistics.succeeded([times])
    metrics = Metrics(lambda: [model])
    name = "tidegate_inference_request_duration_seconds"
    buckets = {dict(key)["le"]: value for key, value in values(metrics, name + "_bucket").items()}
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["0.00025"], buckets["0.025"], buckets["10.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert one(metrics, name + "_count") == 3


def test_prometheus_can_read_the_whole_scrape(model: CountedModel) -> None:
    families = {family.name for family in text_string_to_metric_families(Metrics(lambda: [model]).text())}
    assert {"nv_inference_count", "vllm:num_requests_running"} <= families


def frame(**stats: int) -> StepFrame:
    return StepFrame(0.0, [], [], [], EngineStats(**stats))


def test_engine_counters_grow_by_what_each_step_adds_and_survive_a_restart() -> None:
    metrics = Metrics(list)
    watch = metrics.engines.observer(ModelConfig(name="chat"), "1")
    watch.step(frame(num_generation_tokens_total=5, num_running=2, num_blocks=10, num_free_blocks=4))
    watch.step(frame(num_generation_tokens_total=7, num_running=1, num_blocks=10, num_free_blocks=10))
    assert one(metrics, "vllm:num_requests_running") == 1
    assert one(metrics, "vllm:kv_cache_usage_perc") == 0
    watch.state("restarting", "signal 9")
    assert one(metrics, "vllm:num_requests_running") == 0
    watch.step(frame(num_generation_tokens_total=3))
    assert one(metrics, "vllm:generation_tokens_total") == 10


def test_every_end_of_a_request_is_counted_under_its_reason() -> None:
    metrics = Metrics(list)
    watch = metrics.engines.observer(ModelConfig(name="chat"), "1")
    request = GenerateRequest(id="r", prompt=[1, 2], sampling=SamplingParams(max_tokens=3))
    gone = ServingError(Code.CANCELLED, "left")
    broken = ServingError(Code.INTERNAL, "broke")
    for end in (FinishReason.STOP, FinishReason.LENGTH, gone, broken):
        watch.ended(request, 3, end)
    ends = {dict(key)["finished_reason"]: value for key, value in values(metrics, "vllm:request_success_total").items()}
    assert ends == {"stop": 1, "length": 1, "abort": 1, "error": 1}
    assert one(metrics, "vllm:request_generation_tokens_sum") == 12
