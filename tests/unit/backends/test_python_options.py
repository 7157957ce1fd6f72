"""A custom model's parameters: what they may be, and that they are documented."""

from pathlib import Path

import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.python.options import PythonOptions

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "custom_models.md").read_text()


@pytest.mark.parametrize("name", PythonOptions.__slots__)
def test_every_parameter_is_in_the_documentation(name: str) -> None:
    assert f"| `{name.upper()}` |" in DOCUMENTED


def test_parameters_of_others_are_left_alone() -> None:
    parameters = {"MAX_CONCURRENCY": "3", "EXECUTION_TIMEOUT_SECS": "0.5", "something": "else"}
    options = PythonOptions.of(ModelConfig("m", parameters=parameters))
    assert (options.max_concurrency, options.execution_timeout_secs) == (3, 0.5)
    assert options.response_window == PythonOptions().response_window


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MAX_CONCURRENCY", "0"),
        ("MAX_CONCURRENCY", "many"),
        ("RESPONSE_WINDOW", "-1"),
        ("EXECUTION_TIMEOUT_SECS", "nan"),
        ("FINALIZE_TIMEOUT_SECS", "-2"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ServingError, match=f"model 'm': parameter '{name}'.*'{text}'") as caught:
        PythonOptions.of(ModelConfig("m", parameters={name: text}))
    assert caught.value.code is Code.INVALID
