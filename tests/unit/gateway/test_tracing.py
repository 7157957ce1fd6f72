"""Traces of requests in a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, ModelRun, Times
from gateway.kserve_controls import TraceControl, TraceSettings
from gateway.tracing import Tracer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def control(file: Path, **fields: str) -> TraceControl:
    return TraceControl(TraceSettings(("TIMESTAMPS",), trace_file=str(file), **{"trace_rate": "1", **fields}))


def request(number: int = 0, model: str = "m") -> InferenceRequest:
    times = Times(received=1.0, queued=2.0, compute_start=3.5)
    return InferenceRequest(model, "", [], id=str(number), times=times, taken_by="3")


def trace(tracer: Tracer, count: int) -> None:
    for number in range(count):
        tracer.ended(request(number), None)


def ids(file: Path) -> list[str]:
    return [entry["request_id"] for entry in json.loads(file.read_text()) if "request_id" in entry]


def test_a_trace_names_the_request_and_when_it_passed_each_station(file: Path) -> None:
    tracer = Tracer(control(file))
    tracer.ended(request(7), ServingError(Code.CANCELLED, "gone"))
    tracer.close()
    first, second = json.loads(file.read_text())
    assert first == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "7"}
    stamps: dict[str, Any] = {stamp["name"]: stamp["ns"] for stamp in second["timestamps"]}
    assert stamps.pop("REQUEST_END") > 3_500_000_000
    assert stamps == {"REQUEST_START": 1_000_000_000, "QUEUE_START": 2_000_000_000, "COMPUTE_START": 3_500_000_000}


def test_one_request_of_the_rate_is_traced_and_no_more_than_the_count(file: Path) -> None:
    tracer = Tracer(control(file, trace_rate="3", trace_count="2"))
    trace(tracer, 12)
    tracer.close()
    assert ids(file) == ["0", "3"]


def test_the_steps_of_an_ensemble_are_its_children_and_compute_in_its_place(file: Path) -> None:
    inner = ModelRun("inner", "2", Times(received=4.0, queued=4.5, compute_start=5.0, compute_end=6.0), [])
    middle = ModelRun("middle", "1", Times(received=3.0, queued=3.5, compute_start=4.0, compute_end=6.5), [inner])
    asked = request(7, "outer")
    asked.steps.append(middle)
    tracer = Tracer(control(file))
    tracer.ended(asked, None)
    tracer.close()
    entries = json.loads(file.read_text())
    heads = [(e["id"], e.get("parent_id"), e["model_name"], e["model_version"]) for e in entries if "model_name" in e]
    assert heads == [(1, None, "outer", 3), (2, 1, "middle", 1), (3, 2, "inner", 2)]
    assert {e["request_id"] for e in entries if "model_name" in e} == {"7"}
    stamps = {e["id"]: {stamp["name"]: stamp["ns"] / 1e9 for stamp in e["timestamps"]} for e in entries[1::2]}
    assert set(stamps[1]) == set(stamps[2]) == {"REQUEST_START", "QUEUE_START", "REQUEST_END"}
    assert stamps[2]["REQUEST_END"] == 6.5
    assert stamps[3] == {
        "REQUEST_START": 4.0,
        "QUEUE_START": 4.5,
        "COMPUTE_START": 5.0,
        "COMPUTE_END": 6.0,
        "REQUEST_END": 6.0,
    }


def test_all_models_count_together_but_for_one_with_settings_of_its_own(file: Path) -> None:
    settings = control(file, trace_rate="2", trace_count="2")
    settings.update({"trace_count": "1", "trace_rate": "1"}, "own")
    tracer = Tracer(settings)
    for number, model in enumerate(["a", "own", "b", "c", "own", "a", "b", "c"]):
        tracer.ended(request(number, model), None)
    tracer.close()
    assert ids(file) == ["0", "1", "3"]


def test_a_rate_of_nothing_is_refused(file: Path) -> None:
    settings = control(file)
    with pytest.raises(ServingError, match="sample rate must be non-zero") as raised:
        settings.update({"trace_rate": "0"})
    assert raised.value.code is Code.INVALID
    assert settings.get().trace_rate == "1"


def test_other_settings_count_anew(file: Path) -> None:
    settings = control(file, trace_count="1")
    tracer = Tracer(settings)
    trace(tracer, 3)
    settings.update({"trace_count": "2"})
    trace(tracer, 3)
    tracer.close()
    assert ids(file) == ["0", "0", "1"]


def test_a_model_may_be_traced_alone(file: Path) -> None:
    settings = TraceControl(TraceSettings(trace_file=str(file), trace_rate="1"))
    assert not settings.is_on
    settings.update({"trace_level": ["TIMESTAMPS"]}, "m")
    tracer = Tracer(settings)
    tracer.ended(request(1, "other"), None)
    tracer.ended(request(2), None)
    tracer.close()
    assert ids(file) == ["2"]
    settings.update({"trace_level": None}, "m")
    assert not settings.is_on


def test_files_follow_each_other_by_the_log_frequency(file: Path) -> None:
    tracer = Tracer(control(file, log_frequency="2"))
    trace(tracer, 5)
    tracer.close()
    assert [ids(Path(f"{file}.{number}")) for number in range(3)] == [["0", "1"], ["2", "3"], ["4"]]


def test_a_file_that_cannot_be_written_costs_the_trace_and_not_the_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer(control(tmp_path / "absent" / "trace.json"))
    trace(tracer, 3)
    assert caplog.text.count("cannot write traces") == 1
    (tmp_path / "absent").mkdir()
    trace(tracer, 1)
    tracer.close()
    assert ids(tmp_path / "absent" / "trace.json") == ["0"]
