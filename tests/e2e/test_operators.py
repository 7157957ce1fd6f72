"""What an operator asks of a running server: other instance counts, namespaces, traces, log lines, metrics."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import START, ServerProcess, eventually

pytestmark = pytest.mark.slow

CONFIG = """
backend: "identity" max_batch_size: 4
input [{{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }}]
instance_group {{ kind: KIND_CPU count: {count} }}
response_cache {{ enable: true }}
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }]
ensemble_scheduling { step { model_name: "m" model_version: -1
  input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } }
"""
Start = Callable[..., ServerProcess]
# prometheus_client reads counters as ending in _total, whatever their names


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[ServerProcess] = []

    def make(repository: Path, *flags: str) -> ServerProcess:
        started.append(ServerProcess(repository, *flags))
        assert eventually(started[-1].is_ready, START)
        return started[-1]

    yield make
    for server in started:
        server.stop()


def write(folder: Path, config: str) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    return folder


def infer(server: ServerProcess, model: str = "m", name: str = "IN", value: float = 1.0) -> httpx.Response:
    given = {"name": name, "shape": [1, 1], "datatype": "FP32", "data": [value]}
    return httpx.post(f"{server.url}/v2/models/{model}/infer", json={"id": "i", "inputs": [given]}, timeout=20)


def post(server: ServerProcess, path: str, **body: Any) -> Any:
    response = httpx.post(server.url + path, json=body, timeout=20)
    assert response.status_code == 200, response.text
    return response.json() if response.content else None


def test_other_instance_counts_keep_the_statistics(start: Start, tmp_path: Path) -> None:
    folder = write(tmp_path / "m", CONFIG.format(count=1))
    server = start(tmp_path, "--model-control-mode=explicit", "--load-model=m")
    assert infer(server).status_code == 200
    write(folder, CONFIG.format(count=3))
    post(server, "/v2/repository/models/m/load")
    assert infer(server, value=2.0).status_code == 200
    (group,) = server.get("/v2/models/m/config").json()["instance_group"]
    (statistics,) = server.get("/v2/models/m/stats").json()["model_stats"]
    assert (group["count"], statistics["inference_stats"]["success"]["count"]) == (3, 2)


def test_traces_log_lines_and_metrics_follow_their_settings(start: Start, tmp_path: Path) -> None:
    write(tmp_path / "models" / "m", CONFIG.format(count=1))
    file = tmp_path / "trace.json"
    server = start(
        tmp_path / "models",
        f"--trace-config=triton,file={file}",
        "--trace-config=rate=1",
        "--metrics-config=summary_latencies=true",
        "--cache-config=local,size=1000000",
    )
    infer(server)
    post(server, "/v2/trace/setting", trace_level=["TIMESTAMPS"])
    infer(server)
    assert not server.said("inferred")
    assert post(server, "/v2/logging", log_verbose_level=1)["log_verbose_level"] == 1
    infer(server)
    assert eventually(lambda: server.said("inferred"))
    assert server.metric("nv_cache_num_hits") == server.metric("nv_cache_num_hits_per_model_total", model="m") == 2
    assert server.metric("nv_inference_request_summary_us_count") == 3
    assert 0 < server.metric("nv_cpu_memory_used_bytes") < server.metric("nv_cpu_memory_total_bytes")
    assert 0 < server.metric("nv_model_load_duration_secs", model="m") < START
    server.stop()
    traced = [entry["request_id"] for entry in json.loads(file.read_text()) if "request_id" in entry]
    assert traced == ["i", "i"]


def test_two_repositories_with_one_name_serve_their_ensembles(start: Start, tmp_path: Path) -> None:
    for number, repository in enumerate(("first", "second")):
        write(tmp_path / repository / "m", CONFIG.format(count=1))
        write(tmp_path / repository / f"e{number}", ENSEMBLE)
    server = start(tmp_path / "first", f"--model-repository={tmp_path / 'second'}", "--model-namespacing")
    refused = infer(server)
    assert (refused.status_code, "There are 2 identifiers of model 'm'" in refused.text) == (400, True)
    for turn, model in enumerate(("e0", "e1", "e1")):
        assert infer(server, model, "X", float(turn)).json()["outputs"][0]["data"] == [float(turn)]
    for repository, count in (("first", 1), ("second", 2)):
        labels = {"model": "m", "namespace": str(tmp_path / repository)}
        assert server.metric("nv_inference_request_success_total", **labels) == count
    index = post(server, "/v2/repository/index")
    assert [(entry["name"], entry["state"]) for entry in index] == [(n, "READY") for n in ("e0", "e1", "m", "m")]
