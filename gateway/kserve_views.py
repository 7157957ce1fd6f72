"""Metadata, statistics and index as the documents KServe v2 clients read (triton spec 1.4)."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.statistics import BatchStatistics, Counts, Duration, ModelStatistics, ResponseStatistics
from gateway.kserve_service import Repository
from model_repository.states import IndexEntry

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
# Counts -> inference_stats, in the protocol's order
INFERENCE_STATS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


def model_metadata(model: LiveModel, versions: list[str]) -> dict[str, Any]:
    config = model.config
    return {
        "name": config.name,
        "versions": versions,
        "platform": config.platform or ("ensemble" if config.ensemble else config.backend),
        "inputs": [_tensor_metadata(spec, config) for spec in config.inputs],
        "outputs": [_tensor_metadata(spec, config) for spec in config.outputs],
    }


def _tensor_metadata(spec: TensorSpec, config: ModelConfig) -> dict[str, Any]:
    batch = [-1] if config.max_batch_size > 0 else []
    return {"name": spec.name, "datatype": spec.datatype, "shape": [*batch, *spec.dims]}


def index_entry(entry: IndexEntry) -> dict[str, str]:
    """Only the parts that are known: a model that was never loaded is a name alone."""
    parts = {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
    return {part: text for part, text in parts.items() if text}


def statistics_of(model: LiveModel) -> Counts:
    """What the model's scheduler has counted; zeros for one that does not count."""
    statistics: ModelStatistics | None = getattr(model, "statistics", None)
    return Counts() if statistics is None else statistics.snapshot()


def model_statistics(model: LiveModel) -> dict[str, Any]:
    counts = statistics_of(model)
    return {
        "name": model.config.name,
        "version": model.version,
        "last_inference": counts.last_inference,
        "inference_count": counts.inference_count,
        "execution_count": counts.execution_count,
        "inference_stats": {name: _duration(getattr(counts, name)) for name in INFERENCE_STATS},
        "response_stats": {str(index): _durations(item) for index, item in sorted(counts.response_stats.items())},
        "batch_stats": [{"batch_size": size, **_durations(item)} for size, item in sorted(counts.batch_stats.items())],
        "memory_usage": [],
    }


def _durations(item: BatchStatistics | ResponseStatistics) -> dict[str, dict[str, int]]:
    return {entry.name: _duration(getattr(item, entry.name)) for entry in fields(item)}


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def models_for_statistics(repository: Repository, name: str, version: str) -> Iterable[LiveModel]:
    """The models a statistics request is about. Raises ServingError(INVALID) for an unknown one, as Triton does."""
    if not name:
        return repository.live_models()
    versions = repository.versions(name)
    if not versions:
        raise ServingError(Code.INVALID, f"requested model '{name}' is not available")
    if version and version not in versions:
        raise ServingError(Code.INVALID, f"requested model version is not available for model '{name}'")
    return [repository.find(name, each) for each in ([version] if version else versions)]
