"""What the configuration of a language model may say: what is not acted on is refused, never ignored."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.lm.location import find_model
from backends.lm.options import PARAMETERS as MODEL_PARAMETERS
from backends.lm.options import LmOptions
from scheduler.engine_options import EngineOptions

PARAMETERS = MODEL_PARAMETERS | {*EngineOptions.__struct_fields__}


def check_language_config(config: ModelConfig) -> None:
    """Raises ServingError: INVALID for a parameter nobody knows or with a wrong value, UNSUPPORTED for a field that an
    LLM does not act on."""
    check_parameters(config, PARAMETERS)
    if config.max_batch_size:
        text = f"sizes its batches itself: expected max_batch_size 0, got {config.max_batch_size}"
        raise ServingError(Code.UNSUPPORTED, f"model '{config.name}': backend 'llm' {text}")
    check_fields(config)
    LmOptions.from_parameters({"model": ".", **config.parameters}, config.name)
    EngineOptions.from_parameters(config.parameters, config.name)


def check_language_model(config: ModelConfig, folder: Path) -> None:
    """What can be said of a model and its version's folder without loading it. Raises ServingError as a load would."""
    check_language_config(config)
    find_model(config.parameters.get("model", "."), folder)


def check_parameters(config: ModelConfig, known: Collection[str]) -> None:
    """Raises ServingError(INVALID) for a parameter that is not one of `known`."""
    for name in config.parameters:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f", did you mean '{near[0]}'?" if near else f", known are: {', '.join(sorted(known))}"
            raise ServingError(Code.INVALID, f"model '{config.name}': unknown parameter '{name}'{hint}", param=name)


def check_fields(config: ModelConfig) -> None:
    """Raises ServingError(UNSUPPORTED) for a field that a model with an engine of its own does not act on."""
    for text in _not_acted_on(config):
        raise ServingError(Code.UNSUPPORTED, f"model '{config.name}': backend '{config.backend}' {text}")


def _not_acted_on(config: ModelConfig) -> Iterator[str]:
    if config.dynamic_batching or config.sequence_batching or config.ensemble:
        yield "schedules tokens itself: expected no scheduling choice (dynamic_batching and the like)"
    if config.inputs or config.outputs:
        yield "takes text, not tensors: expected no input and no output"
    if config.response_cache:
        yield "has no response cache"
    if config.warmup:
        yield "warms up by itself: expected no model_warmup"
    if len(config.instance_groups) > 1:
        yield f"runs as one engine: expected one instance_group, got {len(config.instance_groups)}"
    for group in config.instance_groups:
        if group.kind != "KIND_MODEL" or group.count != 1 or group.gpus:
            yield (
                "runs as one engine, on the device that parameter 'device' names: expected one instance_group "
                f"of count 1 and kind KIND_MODEL, got count {group.count} and kind {group.kind}"
            )
