"""Parameters that a backend ignores."""

import re
from pathlib import Path

import pytest

from backends.api.model_config import ModelConfig
from backends.parameters import KNOWN_PARAMETERS, ignored_parameters


def ignored(backend: str, *names: str) -> list[str]:
    return list(ignored_parameters(ModelConfig("m", backend=backend, parameters=dict.fromkeys(names, "1"))))


def test_an_unknown_parameter_is_told_with_what_was_meant() -> None:
    (text,) = ignored("onnxruntime", "intra_op_thred_count", "intra_op_thread_count", "session.any")
    assert text.endswith(
        "'intra_op_thred_count' is ignored by backend 'onnxruntime', did you mean 'intra_op_thread_count'?"
    )
    (text,) = ignored("identity", "colour")
    assert text.endswith("which knows: execute_delay_ms")


@pytest.mark.parametrize("backend", ["python", "llm", ""])
def test_the_parameters_of_others_are_their_own(backend: str) -> None:
    assert ignored(backend, "anything") == []


@pytest.mark.parametrize("backend", ["onnxruntime", "pytorch"])
def test_what_the_documentation_names_is_known(backend: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "model_config.md").read_text()
    match = re.search(rf"\n`{backend}`: (.*?)\n\n", page, re.DOTALL)
    assert match is not None
    names = set(re.findall(r"`([\w.]+)`", match[1])) - {"session."}
    assert len(names) > 5
    assert names <= set(KNOWN_PARAMETERS[backend])
