"""The examples as they stand in the tree, without the weights that are fetched for them."""

import re
import tomllib
from pathlib import Path

import pytest

from backends.api.registry import known_backends
from model_repository.validate import validate
from scheduler.checks import CHECKS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
MODELS = [config.parent for config in sorted(EXAMPLES.glob("*/*/config.pbtxt"))]
FETCHED = "no such file, expected the model of backend 'onnxruntime' here"


def test_validate_finds_no_fault_in_the_examples(tmp_path: Path) -> None:
    assert MODELS
    for folder in (*MODELS, EXAMPLES / "python_models" / "self_describing"):
        (tmp_path / folder.name).symlink_to(folder)
    assert [str(finding) for finding in validate(tmp_path, CHECKS) if finding.message != FETCHED] == []


def test_every_backend_that_the_loader_opens_is_known() -> None:
    assert CHECKS.keys() <= set(known_backends())


@pytest.mark.parametrize("client", sorted((EXAMPLES / "clients").glob("*.py")), ids=lambda path: path.name)
def test_what_the_clients_import_of_tritonclient_comes_with_the_extra_for_them(client: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = [*project["dependencies"], *project["optional-dependencies"]["pipelines"]]
    extras = {
        extra
        for line in installed
        if (found := re.match(r"tritonclient\[(.*)\]", line))
        for extra in found[1].split(",")
    }
    assert set(re.findall(r"import tritonclient\.(grpc|http)", client.read_text())) <= extras
