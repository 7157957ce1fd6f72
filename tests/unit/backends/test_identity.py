from pathlib import Path

import pytest

from backends.api.base import Placement
from backends.api.errors import ServingError
from backends.api.model_config import ModelConfig, TensorSpec
from backends.api.registry import open_backend
from backends.api.tensor import Tensor

CONFIG = ModelConfig(
    "m",
    backend="identity",
    inputs=(TensorSpec("A", "BYTES", (1,)), TensorSpec("B", "FP32", (1,))),
    outputs=(TensorSpec("X", "BYTES", (1,)), TensorSpec("Y", "FP32", (1,))),
)


def test_each_input_comes_back_as_the_output_in_its_place():
    backend = open_backend(CONFIG, Path())
    instance = backend.instance(Placement("m_0"))
    given = Tensor("A", "BYTES", (1,), [b"x"])
    assert instance.execute({"A": given}, []) == {"X": Tensor("X", "BYTES", (1,), [b"x"])}
    assert instance.execute({"A": given}, ["Y"]) == {}


@pytest.mark.parametrize("outputs", [(), (TensorSpec("X", "FP32", (1,)), TensorSpec("Y", "FP32", (1,)))])
def test_outputs_must_match_the_inputs(outputs):
    config = ModelConfig("m", backend="identity", inputs=CONFIG.inputs, outputs=outputs)
    with pytest.raises(ServingError, match="model 'm'"):
        open_backend(config, Path()).complete(config)


def test_a_delay_must_be_a_number():
    with pytest.raises(ServingError, match="'execute_delay_ms' must be a number, got 'long'"):
        open_backend(ModelConfig("m", backend="identity", parameters={"execute_delay_ms": "long"}), Path())
