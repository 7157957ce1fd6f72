"""What a scrape shows of models and engines."""

import re
from dataclasses import dataclass, field, replace
from math import ceil, isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import FinishReason, GenerateRequest, InferenceRequest, SamplingParams, Times
from backends.api.statistics import Failure, Latencies, ModelStatistics
from gateway.metrics import Metrics, MetricsOptions
from gateway.metrics_host import Gpus, Processor
from gateway.metrics_models import Measured
from gateway.metrics_summaries import Summaries, quantile_of
from scheduler.frames import EngineStats, StepFrame
from scheduler.response_cache import LocalCache

# every family of triton spec 6 but those of GPUs and of backends that are not ours
TRITON = [
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
    "nv_model_load_duration_secs",
    "nv_inference_first_response_histogram_ms",
    "nv_inference_request_summary_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us",
    "nv_inference_compute_output_summary_us",
    "nv_cache_num_hits_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_miss_duration_per_model",
    "nv_cache_hit_summary_per_model",
    "nv_cache_miss_summary_per_model",
    "nv_cache_util",
    "nv_cache_num_entries",
    "nv_cache_num_lookups",
    "nv_cache_num_hits",
    "nv_cache_num_misses",
    "nv_cache_num_evictions",
    "nv_cache_lookup_duration",
    "nv_cache_insertion_duration",
    "nv_pinned_memory_pool_total_bytes",
    "nv_pinned_memory_pool_used_bytes",
    "nv_cpu_utilization",
    "nv_cpu_memory_total_bytes",
    "nv_cpu_memory_used_bytes",
]


@dataclass
class CountedModel:
    """A live model that has only its statistics."""

    config: ModelConfig
    version: str = "1"
    num_waiting: int = 3
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    namespace: str = ""
    load_seconds: float | None = None

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
    model.statistics.succeeded([times], 2)
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
        model.statistics.succeeded([times], 1)
    metrics = Metrics(lambda: [model])
    name = "tidegate_inference_request_duration_seconds"
    buckets = {dict(key)["le"]: value for key, value in values(metrics, name + "_bucket").items()}
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["0.00025"], buckets["0.025"], buckets["10.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert one(metrics, name + "_count") == 3


def test_prometheus_can_read_the_whole_scrape(model: CountedModel) -> None:
    families = {family.name for family in text_string_to_metric_families(Metrics(lambda: [model]).text())}
    assert {"nv_inference_count", "vllm:num_requests_running"} <= families


def test_all_of_triton_s_names_are_there(model: CountedModel) -> None:
    options = MetricsOptions(histogram_latencies=True, summary_latencies=True, cpu=True)
    model.config = replace(model.config, decoupled=True)
    model.load_seconds = 1.5
    text = Metrics(lambda: [model], options, LocalCache(1000)).text()
    missing = [name for name in TRITON if f"# TYPE {name} " not in text]
    assert missing == []
    assert 'nv_model_load_duration_secs{_team="a",model="m",version="1"} 1.5' in text


def test_a_namespace_is_a_label_where_there_is_one(model: CountedModel) -> None:
    model.namespace = "/models"
    (labels,) = values(Metrics(lambda: [model]), "nv_inference_count")
    assert dict(labels)["namespace"] == "/models"


def test_latencies_as_counters_can_be_left_out(model: CountedModel) -> None:
    text = Metrics(lambda: [model], MetricsOptions(counter_latencies=False)).text()
    assert "nv_inference_queue_duration_us" not in text
    assert "nv_inference_count" in text
    assert "nv_inference_first_response" not in text
    assert "quantile" not in text


def test_the_time_to_the_first_response_has_the_buckets_of_the_config() -> None:
    config = ModelConfig(name="m", decoupled=True, response_histogram_buckets=(10, 100))
    model = CountedModel(config, statistics=ModelStatistics(config.first_response_bounds))
    for index, seconds in ((0, 0.01), (1, 9.0), (0, 0.05), (0, 5.0)):
        model.statistics.responded(index, "success", since_arrival=seconds)
    metrics = Metrics(lambda: [model], MetricsOptions(histogram_latencies=True))
    name = "nv_inference_first_response_histogram_ms"
    buckets = {dict(key)["le"]: value for key, value in values(metrics, name + "_bucket").items()}
    assert buckets == {"10": 1, "100": 2, "+Inf": 3}
    assert one(metrics, name + "_sum") == pytest.approx(5060)


@given(st.lists(st.floats(1.1e-5, 900.0), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_summary_s_quantile_is_close_to_that_of_the_values(durations: list[float], quantile: float) -> None:
    latencies = Latencies()
    for seconds in durations:
        latencies.add(seconds)
    exact = sorted(durations)[ceil(quantile * len(durations)) - 1]
    assert quantile_of(quantile, latencies.bounds, latencies.counts) == pytest.approx(exact, rel=0.03)


def test_a_summary_forgets_what_is_older_than_its_window(model: CountedModel) -> None:
    now = [0.0]
    summaries = Summaries((0.5,), lambda: now[0])

    def median(*durations: float) -> float:
        times = [Times(queued=1.0, compute_start=1.0, compute_end=1.0 + each) for each in durations]
        model.statistics.succeeded(times, len(times))
        text = "".join(summaries.families([found for found in [Measured.of(model)] if found]))
        (line,) = re.findall(r"nv_inference_request_summary_us{.*quantile.*} (.*)", text)
        now[0] += 40.0
        return float(line)

    assert median(1.0, 1.0, 1.0) == pytest.approx(1e6, rel=0.03)
    assert median(0.001) == pytest.approx(1e6, rel=0.03)
    assert median(0.001) == pytest.approx(1e3, rel=0.03)
    assert isnan(median()) is False
    now[0] += 100.0
    assert isnan(median())


def test_the_machine_s_use_is_that_between_two_looks(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 40 kB\n")
    processor = Processor(tmp_path)
    (tmp_path / "stat").write_text("cpu 10 0 10 60 20 0 0 0 0 0\n")
    assert "nv_cpu_utilization 0.2\n" in "".join(processor.families())
    (tmp_path / "stat").write_text("cpu 60 0 20 80 20 10 10 0 0 0\n")
    text = "".join(processor.families())
    assert "nv_cpu_utilization 0.8\n" in text
    assert "nv_cpu_memory_used_bytes 61440\n" in text
    (tmp_path / "stat").unlink()
    assert processor.families() == []


def test_gpus_show_what_their_library_knows_of_them() -> None:
    class Library:
        energy = 5_000

        def __getattr__(self, name: str) -> Any:
            values = {
                "nvmlDeviceGetCount": 1,
                "nvmlDeviceGetUUID": "GPU-1",
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=25),
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100, used=30),
                "nvmlDeviceGetPowerUsage": 70_000,
                "nvmlDeviceGetTotalEnergyConsumption": self.energy,
                "nvmlInit": None,
                "nvmlDeviceGetHandleByIndex": 0,
            }
            return lambda *_: values[name]  # the power limit is not known: KeyError

    library = Library()
    gpus = Gpus(library)
    gpus.families()
    library.energy = 8_000
    text = "".join(gpus.families())
    for line in ("utilization", 0.25), ("memory_used_bytes", 30), ("power_usage", 70):
        assert f'nv_gpu_{line[0]}{{gpu_uuid="GPU-1"}} {line[1]}\n' in text
    assert 'nv_energy_consumption{gpu_uuid="GPU-1"} 3\n' in text
    assert "nv_gpu_power_limit{" not in text


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
