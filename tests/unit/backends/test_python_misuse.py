"""What a custom model gets wrong is told in the model, by name, and never ends its process."""

import json
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.python.frame_codec import PREFIX, decode, encode
from backends.python.frames import Log, Reply, number_of
from backends.python.pb_request import InferenceRequest
from backends.python.pb_response import InferenceResponse
from backends.python.pb_tensor import TritonModelException
from gateway.custom_metrics import custom_families
from tests.unit.backends.python_models import ONE_INT, ask, failure, loaded


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("model_name", 5, TypeError),
        ("model_name", "\ud800", ValueError),
        ("request_id", None, TypeError),
        ("inputs", None, TypeError),
        ("inputs", ["x"], TypeError),
        ("requested_output_names", [5], TypeError),
        ("requested_output_names", "OUT", TypeError),
        ("requested_output_names", 5, TypeError),
        ("correlation_id", -1, ValueError),
        ("correlation_id", 1 << 64, ValueError),
        ("correlation_id", 1.5, TypeError),
        ("model_version", "1", TypeError),
        ("timeout", -1, ValueError),
        ("timeout", 1 << 70, ValueError),
        ("flags", -1, ValueError),
    ],
)
def test_an_argument_that_cannot_be_is_refused_by_name(argument: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{argument}: "):
        InferenceRequest(**{"model_name": "m", argument: value})


def test_integers_of_numpy_are_integers() -> None:
    request = InferenceRequest(
        model_name="m", correlation_id=np.int64(7), flags=np.uint8(3), timeout=np.int32(9), parameters={"a": np.int8(1)}
    )
    assert (request.correlation_id(), request.flags(), request.timeout()) == (7, 3, 9)
    assert json.loads(request.parameters()) == {"a": 1}


@pytest.mark.parametrize("value", [nan, inf, 1 << 63, -(1 << 63) - 1, None, [1], b"x"])
def test_a_parameter_that_no_protocol_carries_is_refused(value: Any) -> None:
    for make in (InferenceResponse, lambda parameters: InferenceRequest(model_name="m", parameters=parameters)):
        with pytest.raises(TritonModelException, match="'share'"):
            make(parameters={"share": value})


@pytest.mark.parametrize("value", [0.5, 1, True, "x", (1 << 63) - 1, -(1 << 63), np.float64(0.5), np.str_("x")])
def test_a_parameter_arrives_as_it_was(value: Any) -> None:
    assert json.loads(InferenceResponse(parameters={"share": value}).parameters()) == {"share": value}


def crossed(frame: Any) -> Any:
    data = encode(frame)
    kind, size, _ = PREFIX.unpack_from(data)
    assert len(data) == PREFIX.size + size
    return decode(kind, data[PREFIX.size :])


def test_every_number_crosses() -> None:
    for value in (0.0, -1.5, 1e308, inf, -inf):
        assert float(crossed(Reply(1, number_of(value), None)).value) == value
    assert isnan(float(crossed(Reply(1, number_of(nan), None)).value))


def test_a_text_that_is_not_unicode_crosses_with_question_marks() -> None:
    assert crossed(Log(20, "a\ud800é")) == Log(20, "a?é")


@pytest.mark.slow  # starts a process
async def test_no_text_of_an_exception_ends_the_process(tmp_path: Path) -> None:
    source = """
import os
class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no text")
class TritonPythonModel:
    def execute(self, requests):
        match int(requests[0].inputs()[0].as_numpy().flat[0]):
            case 1: raise ValueError("lone \\ud800")
            case 2: raise SilentError
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([[os.getpid()]], np.int32))]) for r in requests]
"""
    async with loaded(tmp_path) as models:
        model = await models.load("m", source)
        before = await ask(model, [0])
        assert (await failure(model, [1])).message.endswith("message: ValueError: lone ?")
        assert "SilentError: its text cannot be had, __str__ raised RuntimeError" in (await failure(model, [2])).message
        assert await ask(model, [0]) == before


@pytest.mark.slow  # starts a process
async def test_a_gauge_holds_any_number(tmp_path: Path) -> None:
    source = """
class TritonPythonModel:
    def initialize(self, args):
        family = pb.MetricFamily(name="level", description="", kind=pb.MetricFamily.GAUGE)
        self.gauges = [family.Metric(labels={"of": name}) for name in ("nan", "inf")]
    def execute(self, requests):
        for gauge, value in zip(self.gauges, (float("nan"), float("-inf"))):
            gauge.set(value)
        told = " ".join(str(gauge.value()) for gauge in self.gauges)
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([[told]], dtype=object))])]
"""
    config = ONE_INT.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')
    async with loaded(tmp_path) as models:
        model = await models.load("m", source, config)
        assert await ask(model) == [[b"nan -inf"]]
        text = "".join(custom_families([model]))
        assert 'level{of="nan"} NaN\nlevel{of="inf"} -Inf\n' in text
