"""The runner of our own token model, loaded as an engine child wants it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from backends.lm.step import ModelRunner
from scheduler.engine_options import EngineOptions
from scheduler.engine_spec import ProgressCallback


def lm_runner(folder: Path, parameters: Mapping[str, str], model_name: str, progress: ProgressCallback) -> ModelRunner:
    """Raises ServingError for parameters or files that are wrong. Imports torch, hence inside."""
    from backends.lm.load import load_runner
    from backends.lm.options import LmOptions

    rows = EngineOptions.from_parameters(parameters, model_name).max_num_seqs
    options = replace(LmOptions.from_parameters(parameters, model_name), max_num_seqs=rows)
    runner: ModelRunner = load_runner(folder, options, progress)
    return runner
