"""Two repositories with models of the same name, told apart by namespace."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository

ENSEMBLE = """
name: "e" platform: "ensemble"
input [{{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }}]
output [{{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }}]
ensemble_scheduling {{ step [{{
  model_name: "m" model_version: -1 {more}
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }}] }}
"""
TWICE = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path, loader: Any) -> AsyncIterator[Start]:
    started: list[Repository] = []

    async def build(mode: str, **options: Any) -> Repository:
        paths = (tmp_path / "models", tmp_path / "others")
        options = {"exit_on_error": False, "poll_seconds": 3600.0, **options}
        repository = Repository(RepositoryOptions(paths=paths, mode=mode, namespacing=True, **options), loader)  # type: ignore[arg-type]
        started.append(repository)
        await repository.start()
        return repository

    yield build
    for repository in started:
        await repository.close()


def write_ensemble(root: Path, repository: str, more: str = "") -> None:
    (root / repository / "e" / "1").mkdir(parents=True, exist_ok=True)
    (root / repository / "e" / "config.pbtxt").write_text(ENSEMBLE.format(more=more))


async def test_a_name_that_is_there_once_needs_no_namespace(start: Start, write_model: Any, tmp_path: Path) -> None:
    write_model("m")
    write_model("n", repository="others")
    repository = await start("none")
    assert [model.namespace for model in repository.live_models()] == [
        str(tmp_path / "models"),
        str(tmp_path / "others"),
    ]
    assert repository.find("n").config.name == "n"
    assert repository.all_ready()


async def test_both_load_and_a_request_cannot_tell_them_apart(start: Start, write_model: Any) -> None:
    write_model("m")
    write_model("m", repository="others")
    repository = await start("none")
    with pytest.raises(ServingError) as refused:
        repository.find("m")
    assert (refused.value.code, refused.value.message) == (Code.INVALID, TWICE)
    assert not repository.is_ready("m")
    assert [(entry.name, entry.state) for entry in repository.index()] == [("m", "READY")] * 2
    assert repository.all_ready()


async def test_when_one_of_them_goes_the_name_is_clear_again(start: Start, write_model: Any, tmp_path: Path) -> None:
    folder = write_model("m")
    write_model("m", repository="others")
    repository = await start("poll")
    folder.rename(tmp_path / "aside")
    await repository.poll()
    assert repository.find("m").namespace == str(tmp_path / "others")
    (tmp_path / "aside").rename(folder)
    await repository.poll()
    with pytest.raises(ServingError, match="There are 2 identifiers"):
        repository.find("m")


async def test_a_step_is_the_model_of_the_ensembles_own_repository(
    start: Start, write_model: Any, tmp_path: Path
) -> None:
    for name in ("models", "others"):
        write_model("m", repository=name)
        write_ensemble(tmp_path, name)
    repository = await start("none")
    for name in ("models", "others"):
        home = str(tmp_path / name)
        assert repository.find_step("m", home=home).namespace == home
    assert len(repository.live_models()) == 4


async def test_a_step_that_its_own_repository_lacks_is_the_only_one_there_is(
    start: Start, write_model: Any, tmp_path: Path
) -> None:
    write_model("m", repository="others")
    write_ensemble(tmp_path, "models")
    repository = await start("explicit")
    await repository.load("e")
    home, other = str(tmp_path / "models"), str(tmp_path / "others")
    assert repository.find_step("m", home=home).namespace == other
    await repository.unload("e", unload_dependents=True)
    assert repository.live_models() == []


async def test_a_step_may_name_its_namespace(start: Start, write_model: Any, tmp_path: Path) -> None:
    home, other = str(tmp_path / "models"), str(tmp_path / "others")
    write_model("m")
    write_model("m", repository="others")
    write_ensemble(tmp_path, "models", f'model_namespace: "{other}"')
    repository = await start("explicit")
    await repository.load("e")
    assert [model.namespace for model in repository.live_models()] == [home, other]
    assert repository.find_step("m", home=home, namespace=other).namespace == other
    assert repository.find("m").namespace == other  # the other one was not loaded


async def test_a_step_that_could_be_several_models_fails_the_load(
    start: Start, write_model: Any, tmp_path: Path, loader: Any
) -> None:
    write_model("m")
    write_model("m", repository="others")
    (tmp_path / "third").mkdir()
    write_ensemble(tmp_path, "third")
    paths = (tmp_path / "models", tmp_path / "others", tmp_path / "third")
    repository = Repository(RepositoryOptions(paths=paths, mode="explicit", namespacing=True), loader)
    with pytest.raises(ServingError, match="There are 2 identifiers of model 'm'"):
        await repository.load("e")
    await repository.close()


async def test_loads_and_unloads_mean_every_model_of_the_name(start: Start, write_model: Any) -> None:
    write_model("m")
    write_model("m", repository="others")
    repository = await start("explicit")
    await repository.load("m")
    assert len(repository.live_models()) == 2
    with pytest.raises(ServingError, match="There are 2 identifiers"):
        await repository.load("m", '{"backend": "identity"}')
    await repository.unload("m")
    assert repository.live_models() == []
    assert repository.all_ready()
