"""Unloading a real model gives back its memory, threads, files and processes."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from model_repository.options import RepositoryOptions
from model_repository.pbtxt import parse_json, to_json
from model_repository.repository import Repository
from scheduler.engine_observer import EngineObserver
from scheduler.loader import ModelLoader, PythonParts

MiB = 1 << 20
PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.ones(8 << 20, np.float32)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
TENSORS = """
input [{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }]
"""


def densenet(folder: Path) -> None:
    spec = find_spec("onnx")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package onnx, which has the model, is not installed")
    light = Path(spec.submodule_search_locations[0]) / "backend/test/data/light/light_densenet121.onnx"
    (folder / "1" / "model.onnx").symlink_to(light)


def torch_script(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(torch.nn.Linear(3000, 3000), torch.zeros(1, 3000))  # 36 MB
        torch.jit.save(module, folder / "1" / "model.pt")
    (folder / "config.pbtxt").write_text(f"max_batch_size: 4 {TENSORS}")


def custom(folder: Path) -> None:
    (folder / "1" / "model.py").write_text(PYTHON)
    (folder / "config.pbtxt").write_text(f"instance_group {{ count: 2 kind: KIND_CPU }} {TENSORS}")


@pytest.mark.slow
@pytest.mark.parametrize("write", [densenet, torch_script, custom])
async def test_fifty_reloads_leave_memory_threads_files_and_processes_where_they_were(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    write(tmp_path / "m")
    python = PythonParts(models=lambda: repository, config_to_json=to_json, config_of_json=parse_json)
    loader = ModelLoader(lambda config, number: EngineObserver(), python=python)
    repository = Repository(RepositoryOptions(paths=(tmp_path,), mode="explicit"), loader)
    process = psutil.Process()

    async def cycle(count: int) -> tuple[int, int, int, int]:
        for _ in range(count):
            await repository.load("m")
            await repository.unload("m")
        return process.memory_info().rss, process.num_threads(), process.num_fds(), len(process.children())

    memory, threads, files, children = await cycle(10)  # allocators and libraries settle
    memory_after, threads_after, files_after, children_after = await cycle(50)
    await repository.close()
    assert memory_after - memory < 40 * MiB  # one copy of each model takes about as much
    # a leak shows fifty times; the executor that reads files may still grow by a few threads
    assert threads_after - threads < 10
    assert files_after - files < 10
    assert children_after == children
