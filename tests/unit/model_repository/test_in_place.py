"""Reloads that leave what serves in place: more or fewer instances, other versions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import ServingError
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository
from tests.unit.model_repository.conftest import ResizableModel

ALL = "version_policy { all {} }"


def count(number: int, more: str = "") -> str:
    return f"instance_group {{ kind: KIND_CPU count: {number} }} {more}"


@pytest.fixture
async def repository(tmp_path: Path, loader: Any) -> AsyncIterator[Repository]:
    loader.kind = ResizableModel
    repository = Repository(RepositoryOptions(paths=(tmp_path / "models",), mode="explicit"), loader)
    yield repository
    await repository.close()


def counts(repository: Repository, name: str = "m") -> dict[str, int]:
    versions = repository.versions(name)
    return {version: repository.find(name, version).config.instance_groups[0].count for version in versions}


async def test_other_instance_counts_keep_the_model_that_serves(
    repository: Repository, write_model: Any, loader: Any
) -> None:
    write_model("m", count(1))
    await repository.load("m")
    serving = repository.find("m")
    write_model("m", count(3))
    await repository.load("m")
    assert repository.find("m") is serving
    assert counts(repository) == {"1": 3}
    assert len(loader.models) == 1
    assert [entry.state for entry in repository.index()] == ["READY"]


async def test_an_override_may_change_the_counts_and_a_plain_load_brings_them_back(
    repository: Repository, write_model: Any, loader: Any
) -> None:
    write_model("m", count(1))
    await repository.load("m")
    config = """{"backend": "identity", "instance_group": [{"kind": "KIND_CPU", "count": 2}],
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}]}"""
    await repository.load("m", config)
    assert counts(repository) == {"1": 2}
    await repository.load("m")
    assert counts(repository) == {"1": 1}
    assert len(loader.models) == 1


@pytest.mark.parametrize("change", ["max_batch_size: 4", 'parameters { key: "a" value { string_value: "b" } }'])
async def test_any_other_change_is_a_whole_reload(
    repository: Repository, write_model: Any, loader: Any, change: str
) -> None:
    write_model("m", count(1))
    await repository.load("m")
    write_model("m", count(2, change))
    await repository.load("m")
    assert [model.is_open for model in loader.models] == [False, True]


async def test_a_changed_model_file_is_a_whole_reload_of_its_version_alone(
    repository: Repository, write_model: Any, loader: Any
) -> None:
    folder = write_model("m", count(1, ALL), versions=(1, 2))
    await repository.load("m")
    (folder / "2" / "weights").write_text("x")
    await repository.load("m")
    assert sorted((model.version, model.is_open) for model in loader.models) == [("1", True), ("2", False), ("2", True)]


async def test_versions_come_and_go_while_the_others_serve(
    repository: Repository, write_model: Any, loader: Any
) -> None:
    write_model("m", count(1, ALL))
    await repository.load("m")
    first = repository.find("m", "1")
    write_model("m", count(2, ALL), versions=(1, 2))
    await repository.load("m")
    assert counts(repository) == {"1": 2, "2": 2}
    assert repository.find("m", "1") is first
    write_model("m", count(2), versions=(1, 2))  # the newest alone
    await repository.load("m")
    assert counts(repository) == {"2": 2}
    assert len(loader.models) == 2


async def test_instances_that_cannot_be_had_leave_everything_as_it_was(
    repository: Repository, write_model: Any, loader: Any
) -> None:
    write_model("m", count(1, ALL), versions=(1, 2))
    await repository.load("m")
    loader.models[0].most = 9
    write_model("m", count(5, ALL), versions=(1, 2))
    with pytest.raises(ServingError, match=f"version {loader.models[1].version} has no room"):
        await repository.load("m")
    assert counts(repository) == {"1": 1, "2": 1}
    assert all("has no room" in entry.reason for entry in repository.index())
    assert [model.closed for model in loader.models] == [0, 0]


async def test_what_came_by_request_with_its_files_is_never_taken_for_what_lies_on_disk(
    repository: Repository, write_model: Any, loader: Any
) -> None:
    config = '{"backend": "identity"}'
    await repository.load("m", config, {"file:1/x": b"1"})
    await repository.load("m", config, {"file:1/x": b"2"})
    await asyncio.gather(*repository._records[repository._known("m")[0]].drains)
    assert [model.is_open for model in loader.models] == [False, True]
    assert [model.folder.exists() for model in loader.models] == [False, True]
