"""Which Python a custom model runs in."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from backends.api.errors import Code, ServingError
from backends.python.environment import Environments
from backends.python.frame_codec import rebuild
from backends.python.frames import Batch, Call, RequestFrame, ResponseFrame, TensorFrame, Work
from tests.unit.backends.python_models import ONE_INT, ask, loaded

WHERE = """
import sys
class TritonPythonModel:
    def execute(self, requests):
        text = np.array([[sys.prefix]], dtype=object)
        return [pb.InferenceResponse([pb.Tensor("OUT", text)]) for r in requests]
"""
TEXT = ONE_INT.replace('"OUT" data_type: TYPE_INT32', '"OUT" data_type: TYPE_STRING')


def in_environment(path: str) -> str:
    return TEXT + f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}'


def make_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


async def test_a_model_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "env")
    async with loaded(tmp_path) as models:
        model = await models.load("m", WHERE, in_environment(str(environment)))
        assert await ask(model) == [[str(environment).encode()]]


def test_a_packed_environment_is_unpacked_once_and_found_relative_to_the_model(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "env")
    model = tmp_path / "repository" / "m"
    (model / "1").mkdir(parents=True)
    with tarfile.open(model / "env.tar.gz", "w:gz") as tar:
        tar.add(environment, arcname=".")
    environments = Environments(tmp_path / "cache")
    for path in ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "env.tar.gz"):
        python = environments.python_for("m", model / "1", path)
        assert Path(python).parent.parent.parent == tmp_path / "cache"
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert subprocess.run([python, "-c", "print(1)"], check=True, capture_output=True).stdout == b"1\n"


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_an_environment_that_cannot_be_used_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "1").mkdir()
    if content is not None:
        (tmp_path / "env.tar.gz").write_bytes(content)
    with pytest.raises(ServingError, match="model 'm'") as caught:
        Environments(tmp_path / "cache").python_for("m", tmp_path / "1", "env.tar.gz")
    assert caught.value.code is Code.INVALID
    assert not list((tmp_path / "cache").glob("*/*"))


@pytest.mark.parametrize("where", ["1/requirements.txt", "requirements.txt"])
def test_packages_are_installed_for_a_model_only_where_that_is_allowed(tmp_path: Path, where: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / where).write_text("")
    with pytest.raises(ServingError, match="--allow-model-requirements") as caught:
        Environments(tmp_path / "cache").python_for("m", tmp_path / "1", "")
    assert caught.value.code is Code.FORBIDDEN


@pytest.mark.slow
def test_allowed_requirements_are_installed_into_an_environment_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    wheel = tmp_path / "of_this_test-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        about = "of_this_test-1.dist-info"
        archive.writestr("of_this_test.py", "VALUE = 7")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: of-this-test\nVersion: 1\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    (tmp_path / "1" / "requirements.txt").write_text(f"--no-index\n{wheel}\n")
    python = Environments(tmp_path / "cache", allow_requirements=True).python_for("m", tmp_path / "1", "")
    command = [python, "-c", "import of_this_test, sys; print(of_this_test.VALUE, sys.prefix)"]
    value, prefix = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert (value, Path(prefix).parent) == ("7", tmp_path / "cache")


def test_frames_are_the_same_without_msgspec() -> None:
    request = RequestFrame(
        3, "id", "seq", 1, 0, {"a": 1.5, "b": None}, ["OUT"], [TensorFrame("x", "FP32", [1], 4, -1)], 32
    )
    plain = [*request[:-2], [list(request.inputs[0])], request.window]
    assert rebuild(Work, [[[1, [plain]]]]) == Work([Batch(1, [request])])
    assert rebuild(Call, [1, 2, True, False, "m", "", False, plain]) == Call(1, 2, True, False, "m", "", False, request)
    response = [[["x", "FP32", [1], 4, -1]], {}, ["INTERNAL", "text"]]
    assert rebuild(ResponseFrame, response).error.message == "text"
