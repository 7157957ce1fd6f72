"""What the configuration of a pooling model may say: what is not acted on is refused, never ignored."""

from collections.abc import Mapping
from pathlib import Path

from backends.api.model_config import ModelConfig
from backends.pooling.description import find_described
from backends.pooling.options import PARAMETERS as MODEL_PARAMETERS
from backends.pooling.options import PoolingOptions
from scheduler.engine_options import EngineOptions
from scheduler.engine_spec import EngineSpec
from scheduler.language_config import check_fields, check_parameters

_SCHEDULING = {"max_num_batched_tokens": "16384", "max_num_queued_reqs": "1024", "max_num_queued_tokens": "1048576"}
PARAMETERS = MODEL_PARAMETERS | _SCHEDULING.keys()


def check_pooling_config(config: ModelConfig) -> None:
    """Raises ServingError: INVALID for a parameter nobody knows or with a wrong value, UNSUPPORTED for a field that such
    a model does not act on."""
    check_parameters(config, PARAMETERS)
    check_fields(config)
    PoolingOptions.from_parameters(config.parameters, config.name)
    _engine_options(config.parameters, config.name)


def check_pooling_model(config: ModelConfig, folder: Path) -> None:
    """What can be said of a model and its version's folder without loading it. Raises ServingError as a load would."""
    check_pooling_config(config)
    find_described(folder, PoolingOptions.from_parameters(config.parameters, config.name))


def pooling_spec(config: ModelConfig, folder: Path) -> EngineSpec:
    """For a model's checked config and its version folder."""
    return EngineSpec(
        model_name=config.name,
        folder=str(folder),
        parameters=dict(config.parameters),
        options=_engine_options(config.parameters, config.name),
        runner="scheduler.pooling_runner:pooling_runner",
        pools=True,
        num_threads=PoolingOptions.from_parameters(config.parameters, config.name).num_threads,
    )


def _engine_options(parameters: Mapping[str, str], model_name: str) -> EngineOptions:
    given = {name: parameters.get(name, default) for name, default in _SCHEDULING.items()}
    return EngineOptions.from_parameters({"max_num_seqs": "1", **given}, model_name)
