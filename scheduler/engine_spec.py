"""What an engine child is told at its start: what to load, how to run it, and in which environment."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, Self, cast

import msgspec

from backends.api.model_config import ModelConfig
from backends.lm.step import ModelRunner
from backends.pooling.runner import PoolingRunner
from scheduler.engine_options import EngineOptions

_ROOT = Path(__file__).resolve().parent.parent

ProgressCallback = Callable[[str, float, float], None]
"""`(what, done, total)` of loading; total 0.0 where it is unknown."""


class RunnerFactory(Protocol):
    """Loads what computes the steps. Raises ServingError for what is wrong with the model."""

    def __call__(
        self, folder: Path, parameters: Mapping[str, str], model_name: str, progress: ProgressCallback
    ) -> ModelRunner: ...


PoolingRunnerFactory = Callable[[Path, Mapping[str, str], str], PoolingRunner]
"""From a folder, parameters and the model's name. Raises ServingError for what is wrong with the model."""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. `runner` is `module:function` of a RunnerFactory; `parameters` those of the model's config.

    `pools`: it makes vectors of texts, and `runner` is that of a PoolingRunner instead.

    `num_threads` 0: all cores up to two, beyond that one is left to the API process. `cache_folder` keeps compiled
    kernels between starts.
    """

    model_name: str
    folder: str
    parameters: dict[str, str] = {}
    options: EngineOptions = EngineOptions()
    runner: str = "scheduler.lm_runner:lm_runner"
    pools: bool = False
    num_threads: int = 0
    cache_folder: str = ""
    records_events: bool = False

    @classmethod
    def of(cls, config: ModelConfig, folder: Path, cache_folder: Path | None = None) -> Self:
        """For a model's config and version folder. Raises ServingError(INVALID) for its scheduling parameters."""
        parameters = dict(config.parameters)
        num_threads = parameters.get("num_threads", "0")
        return cls(
            model_name=config.name,
            folder=str(folder),
            parameters=parameters,
            options=EngineOptions.from_parameters(parameters, config.name),
            num_threads=int(num_threads) if num_threads.isdigit() else 0,  # what is wrong with it, the runner says
            cache_folder=str(cache_folder or ""),
        )

    def load_runner(self, progress: ProgressCallback) -> ModelRunner:
        factory = cast(RunnerFactory, self._factory())
        return factory(Path(self.folder), self.parameters, self.model_name, progress)

    def load_pooling_runner(self) -> PoolingRunner:
        factory = cast(PoolingRunnerFactory, self._factory())
        return factory(Path(self.folder), self.parameters, self.model_name)

    def _factory(self) -> object:
        module, _, name = self.runner.partition(":")
        return getattr(import_module(module), name)


def child_environment(spec: EngineSpec, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what must stand before a library is imported; what the user has set there stays.

    libgomp's threads spin between parallel regions. A short spin is as fast on a quiet machine and does not
    collapse beside another busy process, which the API process is.
    """
    cores = len(os.sched_getaffinity(0))
    threads = str(spec.num_threads or (cores if cores <= 2 else cores - 1))
    defaults = {"GOMP_SPINCOUNT": "1000", "OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    if spec.cache_folder:
        defaults["NUMBA_CACHE_DIR"] = spec.cache_folder
    path = os.pathsep.join(filter(None, (str(_ROOT), base.get("PYTHONPATH", ""))))
    return {**defaults, **base, "PYTHONPATH": path}
