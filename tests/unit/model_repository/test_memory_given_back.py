"""Unloading a real model gives back its memory, threads and files."""

from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from model_repository.options import RepositoryOptions
from model_repository.repository import Repository
from scheduler.engine_observer import EngineObserver
from scheduler.loader import ModelLoader

MiB = 1 << 20


def densenet() -> Path:
    spec = find_spec("onnx")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package onnx, which has the model, is not installed")
    return Path(spec.submodule_search_locations[0]) / "backend/test/data/light/light_densenet121.onnx"


@pytest.mark.slow
async def test_fifty_reloads_leave_memory_threads_and_files_where_they_were(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").symlink_to(densenet())
    repository = Repository(
        RepositoryOptions(paths=(tmp_path,), mode="explicit"), ModelLoader(lambda config, number: EngineObserver())
    )
    process = psutil.Process()

    async def cycle(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            await repository.load("m")
            await repository.unload("m")
        return process.memory_info().rss, process.num_threads(), process.num_fds()

    memory, threads, files = await cycle(10)  # allocators and libraries settle
    memory_after, threads_after, files_after = await cycle(50)
    await repository.close()
    assert memory_after - memory < 40 * MiB  # one copy of this model takes more
    # a leak shows fifty times; the executor that reads files may still grow by a few threads
    assert threads_after - threads < 10
    assert files_after - files < 10
