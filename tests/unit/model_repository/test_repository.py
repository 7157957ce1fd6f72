"""Load, unload, find and index, with a loader that works and a real disk."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository
from model_repository.states import IndexEntry, State

Make = Callable[..., Repository]


@pytest.fixture
def make(tmp_path: Path, loader: Any) -> Make:
    def build(mode: str = "explicit", on_change: Any = None, **options: Any) -> Repository:
        paths = options.pop("paths", (tmp_path / "models",))
        return Repository(RepositoryOptions(paths=paths, mode=mode, **options), loader, on_change)  # type: ignore[arg-type]

    return build


def listing(folder: Path) -> set[Path]:
    return set(folder.iterdir())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def states(repository: Repository, name: str) -> dict[str, tuple[State, str]]:
    return {entry.version: (State(entry.state), entry.reason) for entry in repository.index() if entry.name == name}


async def test_a_loaded_model_is_found_by_name_and_by_version(make: Make, write_model: Any) -> None:
    write_model("m", "version_policy { all {} }", versions=(1, 2, 10))
    repository = make()
    await repository.load("m")
    assert repository.find("m").version == "10"
    assert repository.find("m", "2").version == repository.find("m", "002").version == "2"
    with pytest.raises(ServingError, match=r"version 0 is not found"):
        repository.find("m", "0")
    with pytest.raises(ServingError, match=r"version 9+ is not found"):
        repository.find("m", "9" * 5000)
    assert repository.versions("m") == ["1", "2", "10"]
    assert repository.is_ready("m")
    assert repository.is_ready("m", "1")
    assert not repository.is_ready("m", "3")
    assert repository.find("m", "02") is repository.find("m", "2")
    await repository.close()


async def test_what_is_not_there_is_refused_with_the_reason(make: Make, write_model: Any) -> None:
    write_model("m")
    write_model("bad", 'parameters { key: "fail" value { string_value: "no such file" } }')
    repository = make()
    await repository.load("m")
    with pytest.raises(ServingError):
        await repository.load("bad")

    def refusal(name: str, version: str = "") -> tuple[Code, str]:
        with pytest.raises(ServingError) as raised:
            repository.find(name, version)
        return raised.value.code, raised.value.message

    unknown = "Request for unknown model: "
    assert refusal("nope") == (Code.NOT_FOUND, f"{unknown}'nope' is not found")
    assert refusal("m", "7") == (Code.NOT_FOUND, f"{unknown}'m' version 7 is not found")
    assert refusal("bad") == (Code.NOT_FOUND, f"{unknown}'bad' has no available versions")
    assert refusal("bad", "1") == (Code.UNAVAILABLE, f"{unknown}'bad' version 1 is not at ready state")
    await repository.close()
    assert refusal("m")[0] is Code.UNAVAILABLE


async def test_a_model_that_is_loading_is_unavailable_and_not_unknown(
    make: Make, write_model: Any, loader: Any
) -> None:
    write_model("m")
    loader.gate = asyncio.Event()
    repository = make()
    loading = asyncio.create_task(repository.load("m"))
    await loader.started.wait()
    with pytest.raises(ServingError, match="loading") as raised:
        repository.find("m")
    assert raised.value.code is Code.UNAVAILABLE
    assert states(repository, "m") == {"1": (State.LOADING, "")}
    loader.gate.set()
    await loading
    assert repository.is_ready("m")
    await repository.close()


async def test_a_failed_load_says_why_and_a_repaired_model_loads_without_a_restart(
    make: Make, write_model: Any
) -> None:
    write_model("m", 'parameters { key: "fail" value { string_value: "model.onnx: no such file" } }')
    repository = make()
    with pytest.raises(ServingError) as raised:
        await repository.load("m")
    assert raised.value.code is Code.INVALID
    assert raised.value.message == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: model.onnx: no such file;\n"
    )
    assert states(repository, "m") == {"1": (State.UNAVAILABLE, "Internal: model.onnx: no such file")}
    await repository.unload("m")
    write_model("m")
    await repository.load("m")
    assert states(repository, "m") == {"1": (State.READY, "")}
    await repository.close()


async def test_a_failed_reload_leaves_the_old_version_answering_and_the_index_says_why(
    make: Make, write_model: Any, loader: Any, request_for: Callable[[str], InferenceRequest]
) -> None:
    write_model("m")
    repository = make()
    await repository.load("m")
    old = repository.find("m")
    write_model("m", "max_batch: 4")
    with pytest.raises(ServingError, match=r"m/config.pbtxt:\d+:1: .* Did you mean 'max_batch_size'"):
        await repository.load("m")
    assert repository.find("m") is old
    state, reason = states(repository, "m")["1"]
    assert state is State.READY
    assert "max_batch" in reason
    write_model("m")
    await repository.load("m")
    assert states(repository, "m") == {"1": (State.READY, "")}
    await repository.close()


async def test_all_versions_load_or_none(make: Make, write_model: Any, loader: Any) -> None:
    write_model("m", 'version_policy { all {} } parameters { key: "fail_2" value { string_value: "broken" } }', (1, 2))
    repository = make()
    with pytest.raises(ServingError, match="version 2 is at UNAVAILABLE state: Internal: broken"):
        await repository.load("m")
    assert [model.closed for model in loader.models] == [1]
    assert states(repository, "m") == {
        "1": (State.UNAVAILABLE, "unloaded"),
        "2": (State.UNAVAILABLE, "Internal: broken"),
    }
    await repository.close()


async def test_a_loader_that_raises_something_else_is_an_internal_error(make: Make, write_model: Any) -> None:
    write_model("m", 'parameters { key: "crash" value { string_value: "oops" } }')
    repository = make()
    with pytest.raises(ServingError, match="Internal: KeyError: 'oops'"):
        await repository.load("m")
    await repository.close()


async def test_a_reload_of_an_unchanged_model_does_nothing(make: Make, write_model: Any, loader: Any) -> None:
    folder = write_model("m")
    repository = make()
    await repository.load("m")
    await repository.load("m")
    assert len(loader.models) == 1
    (folder / "1" / "labels.txt").write_text("cat")
    await repository.load("m")
    assert len(loader.models) == 2
    await repository.close()


async def test_requests_taken_before_a_reload_are_answered_and_new_ones_go_to_the_new_version(
    make: Make, write_model: Any, loader: Any, request_for: Callable[[str], InferenceRequest]
) -> None:
    write_model("m")
    repository = make()
    await repository.load("m")
    request = request_for("m")
    old = loader.models[0]
    repository.find("m").infer(request)
    write_model("m")
    await repository.load("m")
    await settle()
    assert repository.find("m") is loader.models[1]
    assert (old.is_open, old.closed, request.stream.ended) == (False, 0, False)
    old.answer()
    assert (await anext(request.stream)).version == "1"
    await settle()
    assert old.closed == 1
    await repository.close()


async def test_unload_refuses_at_once_and_returns_when_the_last_request_is_answered(
    make: Make, write_model: Any, loader: Any, request_for: Callable[[str], InferenceRequest]
) -> None:
    write_model("m")
    repository = make()
    await repository.load("m")
    repository.find("m").infer(request_for("m"))
    unloading = asyncio.create_task(repository.unload("m"))
    await settle()
    assert not unloading.done()
    assert not repository.is_ready("m")
    assert states(repository, "m") == {"1": (State.UNLOADING, "")}
    loader.models[0].answer()
    await unloading
    assert loader.models[0].closed == 1
    assert states(repository, "m") == {"1": (State.UNAVAILABLE, "unloaded")}
    await repository.load("m")
    assert repository.is_ready("m")
    await repository.close()


async def test_unload_of_an_unknown_model_is_no_error(make: Make) -> None:
    await make().unload("nope")


@pytest.mark.parametrize("name", ["", " ", "../m", "a/b", "..", ".", "/etc", "a\\b"])
async def test_names_that_could_leave_the_repository_are_refused(make: Make, write_model: Any, name: str) -> None:
    with pytest.raises(ServingError, match=r"path traversal|cannot be empty") as raised:
        await make().load(name)
    assert raised.value.code is Code.INVALID


@pytest.mark.parametrize("name", ["nope", "a" * 300])
async def test_an_unknown_model_is_said_as_triton_says_it_and_leaves_nothing_behind(
    make: Make, write_model: Any, name: str
) -> None:
    repository = make()
    with pytest.raises(ServingError) as raised:
        await repository.load(name)
    assert raised.value.message == f"failed to load '{name}', failed to poll from model repository"
    assert repository.index() == []


@pytest.mark.parametrize("mode", ["none", "poll"])
async def test_load_and_unload_need_mode_explicit(make: Make, write_model: Any, mode: str) -> None:
    repository = make(mode)
    for control in (repository.load, repository.unload):
        with pytest.raises(ServingError) as raised:
            await control("m")
        assert raised.value.message == "explicit model load / unload is not allowed if polling is enabled"


async def test_an_override_config_serves_until_the_next_plain_load(make: Make, write_model: Any, loader: Any) -> None:
    write_model("m")
    repository = make()
    await repository.load("m")
    config = {
        "backend": "identity",
        "max_batch_size": 7,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}],
    }
    await repository.load("m", json.dumps(config))
    assert repository.find("m").config.max_batch_size == 7
    await repository.load("m")
    assert repository.find("m").config.max_batch_size == 0
    with pytest.raises(ServingError, match="max_batch_size"):
        await repository.load("m", json.dumps({**config, "max_batch_size": "many"}))
    assert repository.find("m").config.max_batch_size == 0
    await repository.close()


async def test_override_files_live_in_a_temporary_folder_as_long_as_their_model(make: Make, write_model: Any) -> None:
    repository = make()
    config = json.dumps({"backend": "identity"})
    await repository.load("sent", config, {"file:3/model.bin": b"weights", "file:3/deep/er.txt": b"x"})
    model: Any = repository.find("sent")
    assert model.version == "3"
    assert (model.folder / "model.bin").read_bytes() == b"weights"
    await repository.unload("sent")
    assert not model.folder.exists()
    await repository.close()


@pytest.mark.parametrize("path", ["../x", "1/../../x", "/etc/x", "1//x", "", "1/./x"])
async def test_override_files_stay_inside_the_model(make: Make, write_model: Any, path: str) -> None:
    with pytest.raises(ServingError, match="must not contain path traversal characters"):
        await make().load("m", '{"backend": "identity"}', {f"file:{path}": b""})


@pytest.mark.parametrize("folder", ["01", "-1", "v1"])
async def test_override_files_of_what_is_no_version_are_refused(make: Make, write_model: Any, folder: str) -> None:
    with pytest.raises(ServingError, match=f"a version is a number from 1 without leading zeros, got '{folder}'"):
        await make().load("m", '{"backend": "identity"}', {"file:1/x": b"", f"file:{folder}/x": b""})


async def test_a_fault_in_an_override_names_its_field(make: Make, write_model: Any) -> None:
    write_model("m")
    with pytest.raises(ServingError, match=r"override config of model 'm': max_batch_size: 'max_batch_size' must be"):
        await make().load("m", '{"backend": "identity", "max_batch_size": -1}')


async def test_override_files_need_a_config(make: Make, write_model: Any) -> None:
    with pytest.raises(ServingError, match="must give the model's config too"):
        await make().load("m", None, {"file:1/model.bin": b""})


async def test_a_temporary_folder_is_gone_after_a_failed_load(
    make: Make, write_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = json.dumps({"backend": "identity", "parameters": {"fail": {"string_value": "no"}}})
    before = listing(tmp_path)
    for override, files in (
        (config, {"file:1/a": b""}),
        ("{", {"file:1/a": b""}),
        ("{}", {"file:1/a": b"", "file:1/a/b": b""}),
    ):
        with pytest.raises(ServingError):
            await make().load("m", override, files)
    assert listing(tmp_path) == before


async def test_a_caller_that_leaves_does_not_stop_a_load(make: Make, write_model: Any, loader: Any) -> None:
    write_model("m")
    loader.gate = asyncio.Event()
    repository = make()
    loading = asyncio.create_task(repository.load("m"))
    await loader.started.wait()
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    loader.gate.set()
    await repository.load("m")
    assert len(loader.models) == 1
    await repository.close()


async def test_close_stops_a_load_in_progress_and_its_caller_hears_why(
    make: Make, write_model: Any, loader: Any
) -> None:
    write_model("m")
    loader.gate = asyncio.Event()
    repository = make()
    loading = asyncio.create_task(repository.load("m"))
    await loader.started.wait()
    await repository.close()
    with pytest.raises(ServingError, match="Server is stopping"):
        await loading
    assert loader.open == []
    assert loader.running == 0


async def test_loads_of_different_models_run_side_by_side_up_to_the_limit(
    make: Make, write_model: Any, loader: Any
) -> None:
    for index in range(6):
        write_model(f"m{index}")
    loader.gate = asyncio.Barrier(3)  # opens when three loads stand before it
    repository = make("none", load_threads=3)
    async with asyncio.timeout(20):
        await repository.start()
    assert loader.most_running == 3
    assert len(repository.ready_models()) == 6
    await repository.close()


async def test_every_change_of_state_is_reported_once(make: Make, write_model: Any, loader: Any) -> None:
    changes: list[tuple[str, str, str]] = []
    write_model("m")
    repository = make(on_change=lambda name, version, state, reason: changes.append((version, state.value, reason)))
    await repository.load("m")
    await repository.load("m")
    await repository.unload("m")
    assert changes == [
        ("1", "LOADING", ""),
        ("1", "READY", ""),
        ("1", "UNLOADING", ""),
        ("1", "UNAVAILABLE", "unloaded"),
    ]


async def test_the_index_lists_models_that_were_never_loaded(make: Make, write_model: Any) -> None:
    write_model("a")
    write_model("b", versions=(1, 2))
    repository = make()
    await repository.load("b")
    assert repository.index() == [IndexEntry("a"), IndexEntry("b", "2", "READY")]
    assert repository.index(ready_only=True) == [IndexEntry("b", "2", "READY")]
    await repository.close()


async def test_a_version_that_the_policy_drops_is_unloaded_at_reload(make: Make, write_model: Any) -> None:
    write_model("m", versions=(1,))
    repository = make()
    await repository.load("m")
    write_model("m", versions=(1, 2))
    await repository.load("m")
    await settle()
    assert states(repository, "m") == {"1": (State.UNAVAILABLE, "unloaded"), "2": (State.READY, "")}
    await repository.close()
