"""The runner of our own pooling models, loaded as an engine child wants it."""

from collections.abc import Mapping
from pathlib import Path

from backends.pooling.options import PoolingOptions
from backends.pooling.runner import PoolingRunner


def pooling_runner(folder: Path, parameters: Mapping[str, str], model_name: str) -> PoolingRunner:
    """Raises ServingError for parameters or files that are wrong. Imports torch, hence inside."""
    from backends.pooling.load import load_runner

    return load_runner(folder, PoolingOptions.from_parameters(parameters, model_name))
