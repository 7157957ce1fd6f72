"""What is loaded at start, when the server is ready, and how poll mode follows the disk."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import ServingError
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository

Make = Callable[..., Repository]
FAILING = 'parameters { key: "fail" value { string_value: "no" } }'


@pytest.fixture
def start(tmp_path: Path, loader: Any) -> Make:
    def build(mode: str, **options: Any) -> Repository:
        paths = options.pop("paths", (tmp_path / "models",))
        options.setdefault("exit_on_error", False)
        return Repository(RepositoryOptions(paths=paths, mode=mode, **options), loader)  # type: ignore[arg-type]

    return build


def ready(repository: Repository) -> list[str]:
    return [model.config.name for model in repository.ready_models()]


async def test_mode_none_loads_all_and_the_good_ones_serve_beside_a_bad_one(start: Make, write_model: Any) -> None:
    write_model("a")
    write_model("b", FAILING)
    repository = start("none")
    assert not repository.all_ready()
    failed = await repository.start()
    assert list(failed) == ["b"]
    assert ready(repository) == ["a"]
    assert not repository.all_ready()
    await repository.close()


async def test_a_model_whose_engine_restarts_keeps_itself_and_a_strict_server_from_being_ready(
    start: Make, write_model: Any, loader: Any
) -> None:
    write_model("m")
    repository = start("none")
    await repository.start()
    loader.models[0].is_ready = False
    assert not repository.is_ready("m")
    assert not repository.all_ready()
    loader.models[0].is_ready = True
    assert repository.is_ready("m")
    assert repository.all_ready()
    await repository.close()


async def test_without_strict_readiness_a_failed_model_does_not_count(start: Make, write_model: Any) -> None:
    write_model("b", FAILING)
    repository = start("none", strict_readiness=False)
    await repository.start()
    assert repository.all_ready()
    await repository.close()
    assert not repository.all_ready()


async def test_with_exit_on_error_a_failed_model_is_an_error_that_names_it(
    start: Make, write_model: Any, loader: Any
) -> None:
    write_model("a")
    write_model("b", FAILING)
    repository = start("none", exit_on_error=True)
    with pytest.raises(ServingError, match="1 of 2 models failed to load:\n  b: load failed for model 'b'"):
        await repository.start()
    await repository.close()
    assert loader.open == []


@pytest.mark.parametrize(
    ("names", "loaded"), [((), []), (("b",), ["b"]), (("b", "a", "b"), ["a", "b"]), (("*",), ["a", "b", "c"])]
)
async def test_mode_explicit_loads_what_it_is_told(
    start: Make, write_model: Any, names: tuple[str, ...], loaded: list[str]
) -> None:
    for name in "abc":
        write_model(name)
    repository = start("explicit", load_models=names)
    assert await repository.start() == {}
    assert ready(repository) == loaded
    assert repository.all_ready()
    await repository.close()


async def test_a_start_up_model_that_is_not_there_keeps_the_server_from_being_ready(
    start: Make, write_model: Any
) -> None:
    repository = start("explicit", load_models=("nope",))
    assert list(await repository.start()) == ["nope"]
    assert not repository.all_ready()
    write_model("nope")
    await repository.load("nope")
    assert repository.all_ready()
    await repository.close()


async def test_a_model_loaded_later_or_unloaded_on_purpose_does_not_change_readiness(
    start: Make, write_model: Any
) -> None:
    write_model("a")
    write_model("later", FAILING)
    repository = start("explicit", load_models=("a",))
    await repository.start()
    with pytest.raises(ServingError):
        await repository.load("later")
    assert repository.all_ready()
    await repository.unload("a")
    assert repository.all_ready()
    await repository.close()


async def test_a_repository_that_is_not_there_is_an_error_with_its_path(start: Make, tmp_path: Path) -> None:
    repository = start("none", paths=(tmp_path / "absent",))
    with pytest.raises(ServingError, match=r"absent.* cannot be read: No such file"):
        await repository.start()


async def test_the_same_name_in_two_repositories_is_served_by_neither(
    start: Make, write_model: Any, tmp_path: Path
) -> None:
    write_model("m")
    write_model("m", repository="others")
    write_model("n", repository="others")
    repository = start("none", paths=(tmp_path / "models", tmp_path / "others"))
    failed = await repository.start()
    assert "not unique across all model repositories" in failed["m"].message
    assert ready(repository) == ["n"]
    await repository.close()


async def test_a_load_that_fails_is_tried_again_as_often_as_said(start: Make, write_model: Any, loader: Any) -> None:
    write_model("m")
    loader.num_faults = 2
    repository = start("none", load_retries=2)
    assert await repository.start() == {}
    assert ready(repository) == ["m"]
    loader.num_faults = 3
    write_model("n")
    with pytest.raises(ServingError, match="not this time"):
        await repository._lifecycle.load(repository._sources.ids("n")[0])
    await repository.close()


async def test_poll_mode_follows_what_is_added_changed_and_removed(start: Make, write_model: Any, loader: Any) -> None:
    write_model("a")
    folder = write_model("b")
    repository = start("poll", poll_seconds=3600.0)
    await repository.start()
    await repository.poll()
    assert len(loader.models) == 2
    write_model("a", versions=(1, 2))
    write_model("c")
    shutil.rmtree(folder)
    await repository.poll()
    assert ready(repository) == ["a", "c"]
    assert repository.find("a").version == "2"
    assert repository.all_ready()
    await repository.close()
    assert loader.open == []


async def test_poll_mode_tries_a_broken_model_again_only_when_it_changes(
    start: Make, write_model: Any, loader: Any
) -> None:
    write_model("m")
    repository = start("poll", poll_seconds=3600.0)
    await repository.start()
    write_model("m", FAILING)
    for _ in range(3):
        await repository.poll()
        assert ready(repository) == ["m"]
    entries = repository.index()
    assert [(entry.state, "reload failed" in entry.reason) for entry in entries] == [("READY", True)]
    write_model("m")
    await repository.poll()
    assert len(loader.models) == 2
    assert repository.index()[0].reason == ""
    await repository.close()


async def test_named_configs_are_picked_where_they_exist(start: Make, write_model: Any) -> None:
    folder = write_model("a")
    write_model("b")
    (folder / "configs").mkdir()
    text = (folder / "config.pbtxt").read_text()
    (folder / "configs" / "big.pbtxt").write_text(text + "\nmax_batch_size: 64")
    repository = start("none", config_name="big")
    await repository.start()
    assert [model.config.max_batch_size for model in repository.ready_models()] == [64, 0]
    await repository.close()
