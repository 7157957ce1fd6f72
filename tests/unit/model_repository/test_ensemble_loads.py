"""An ensemble and the models of its steps: loaded together, unloaded together where asked, closed in order."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from model_repository.options import RepositoryOptions
from model_repository.repository import Repository
from model_repository.states import State

FAIL = 'parameters { key: "fail" value { string_value: "no such file" } }'
Write = Callable[..., None]


@pytest.fixture
def write_ensemble(tmp_path: Path, write_model: Any) -> Write:
    """write(name, *models): an ensemble whose steps run one after the other."""

    def write(name: str, *models: str) -> None:
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        tensors = ["IN", *(f"t{index}" for index in range(1, len(models))), "OUT"]
        steps = ", ".join(
            f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{tensors[index]}" }} '
            f'output_map {{ key: "OUT" value: "{tensors[index + 1]}" }} }}'
            for index, model in enumerate(models)
        )
        (folder / "config.pbtxt").write_text(
            'platform: "ensemble"\n'
            'input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]\n'
            'output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]\n'
            f"ensemble_scheduling {{ step [ {steps} ] }}\n"
        )

    return write


def repository(tmp_path: Path, loader: Any, mode: Any = "explicit", **options: Any) -> Repository:
    return Repository(RepositoryOptions(paths=(tmp_path / "models",), mode=mode, **options), loader)


def ready(served: Repository) -> list[str]:
    return [model.config.name for model in served.ready_models()]


async def test_loading_an_ensemble_loads_the_models_it_needs_first(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write
) -> None:
    write_model("a")
    write_model("b")
    write_ensemble("inner", "b")
    write_ensemble("e", "a", "inner", "a")
    served = repository(tmp_path, loader)
    await served.load("e")
    assert ready(served) == ["a", "b", "e", "inner"]
    order = [model.config.name for model in loader.models]
    assert order[-1] == "e"
    assert order.index("b") < order.index("inner")
    await served.close()


async def test_all_models_of_a_start_load_once_whatever_needs_what(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write
) -> None:
    write_ensemble("a_first", "m", "n")
    write_ensemble("b_next", "a_first", "n")
    write_model("m")
    write_model("n")
    served = repository(tmp_path, loader, "none", load_threads=1)
    assert await served.start() == {}
    assert ready(served) == ["a_first", "b_next", "m", "n"]
    assert len(loader.models) == 4
    await served.close()


async def test_a_step_that_cannot_be_loaded_fails_the_ensemble_with_its_reason(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write
) -> None:
    write_model("bad", FAIL)
    write_ensemble("e", "bad")
    write_ensemble("f", "gone")
    served = repository(tmp_path, loader)
    with pytest.raises(ServingError, match="ensemble 'e' depends on 'bad' which has no loaded version.*no such file"):
        await served.load("e")
    with pytest.raises(ServingError, match="ensemble 'f' depends on 'gone' .*failed to poll from model repository"):
        await served.load("f")
    states = {entry.name: entry.state for entry in served.index() if entry.state}
    assert states == {"bad": "UNAVAILABLE", "e": "UNAVAILABLE", "f": "UNAVAILABLE"}
    await served.close()


async def test_ensembles_that_need_each_other_are_refused_and_do_not_wait_for_ever(
    tmp_path: Path, loader: Any, write_ensemble: Write
) -> None:
    write_ensemble("e", "f")
    write_ensemble("f", "e")
    write_ensemble("own", "own")
    served = repository(tmp_path, loader, "none", exit_on_error=False)
    failed = await asyncio.wait_for(served.start(), 20)
    assert sorted(failed) == ["e", "f", "own"]
    assert any("circular dependency between ensembles" in failed[name].message for name in ("e", "f"))
    assert "circular dependency between ensembles: own -> own" in failed["own"].message
    await served.close()


async def test_unload_leaves_the_steps_unless_their_unload_is_asked_for_too(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write
) -> None:
    for name in ("a", "b", "c"):
        write_model(name)
    write_ensemble("inner", "c")
    write_ensemble("e", "a", "b", "inner")
    write_ensemble("f", "b")
    served = repository(tmp_path, loader)
    await served.load("e")
    await served.load("f")
    await served.unload("f")
    assert ready(served) == ["a", "b", "c", "e", "inner"]
    await served.load("f")
    await served.unload("e", unload_dependents=True)
    assert ready(served) == ["b", "f"]  # f still needs b
    await served.close()


async def test_an_unload_that_is_not_waited_for_takes_the_steps_once_the_requests_are_answered(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write, request_for: Any
) -> None:
    write_model("a")
    write_ensemble("e", "a")
    served = repository(tmp_path, loader)
    await served.load("e")
    served.find("e").infer(request_for("e"))
    await served.unload("e", unload_dependents=True, waits=False)
    assert ready(served) == ["a"]
    (ensemble,) = [model for model in loader.models if model.config.name == "e"]
    ensemble.answer()
    while ready(served):
        await asyncio.sleep(0)
    await served.close()


async def test_an_ensemble_is_closed_before_the_models_its_requests_still_need(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write, request_for: Any
) -> None:
    write_model("a")
    write_ensemble("e", "a")
    served = repository(tmp_path, loader)
    await served.load("e")
    ensemble, step = served.find("e"), served.find("a")
    ensemble.infer(request_for("e"))
    closing = asyncio.create_task(served.close())
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(ServingError) as refused:
        served.find("a")
    assert refused.value.code is Code.UNAVAILABLE
    assert served.find_step("a") is step
    assert served.find_step("a", "1") is step
    assert step.is_open  # type: ignore[attr-defined]
    ensemble.answer()  # type: ignore[attr-defined]
    await closing
    assert not step.is_open  # type: ignore[attr-defined]
    with pytest.raises(ServingError):
        served.find_step("a")


async def test_a_step_that_answers_already_is_not_loaded_again(
    tmp_path: Path, loader: Any, write_model: Any, write_ensemble: Write
) -> None:
    write_model("a")
    write_ensemble("e", "a")
    served = repository(tmp_path, loader)
    await served.load("a")
    write_model("a", "# changed on disk")
    before = served.find("a")
    await served.load("e")
    assert served.find("a") is before
    assert [entry.state for entry in served.index()] == [State.READY.value] * 2
    await served.close()
