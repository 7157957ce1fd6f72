"""What an ensemble's configuration must hold by itself: every tensor is written once, read, and reached by data.

What depends on the steps' models is checked when the ensemble is loaded. Texts are Triton's.
"""

from collections.abc import Iterator, Mapping

from backends.api.model_config import Ensemble, ModelConfig, Optimization
from model_repository.problem import Problem

_PATH = "ensemble_scheduling"


def ensemble_problems(ensemble: Ensemble, config: ModelConfig) -> Iterator[Problem]:
    """Everything wrong, of which the data flow is only looked at where the steps are whole."""
    if config.optimization != Optimization():
        yield Problem("optimization", f"optimization should not be specified for ensemble '{config.name}'")
    if config.warmup:
        yield Problem("model_warmup", f"model_warmup can not be specified for ensemble '{config.name}'")
    faults = list(_steps(ensemble, config))
    yield from faults or _flow(ensemble, config)


def _steps(ensemble: Ensemble, config: ModelConfig) -> Iterator[Problem]:
    if not ensemble.steps:
        yield Problem(_PATH, f"must specify 'step' for ensemble '{config.name}'")
    if ensemble.max_inflight_requests < 0:
        text = f"'max_inflight_requests' must be non-negative for ensemble '{config.name}'"
        yield Problem(f"{_PATH}.max_inflight_requests", text)
    for index, step in enumerate(ensemble.steps):
        given: Mapping[str, object] = {
            "model_name": step.model_name,
            "input_map": step.input_map,
            "output_map": step.output_map,
        }
        for field, value in given.items():
            if not value:
                text = f"must specify '{field}' in step {index} of ensemble '{config.name}'"
                yield Problem(f"{_PATH}.step[{index}]", text)


def _flow(ensemble: Ensemble, config: ModelConfig) -> Iterator[Problem]:
    written = set[str]()
    given = {spec.name for spec in config.inputs}
    for index, step in enumerate(ensemble.steps):
        for tensor in step.output_map.values():
            if tensor in written or tensor in given:
                text = f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{config.name}' step {index}"
                yield Problem(f"{_PATH}.step[{index}].output_map", text)
            written.add(tensor)
    read = {tensor for step in ensemble.steps for tensor in step.input_map.values()}
    reached = _reached(ensemble, given)
    for index, spec in enumerate(config.inputs):
        if spec.name not in read:
            text = f"ensemble input '{spec.name}' for ensemble '{config.name}' is not used"
            yield Problem(f"input[{index}]", text)
    outputs = {spec.name for spec in config.outputs}
    for index, spec in enumerate(config.outputs):
        if spec.name not in written | read | given:
            text = f"ensemble output '{spec.name}' for ensemble '{config.name}' is not used"
            yield Problem(f"output[{index}]", text)
        elif spec.name not in reached:
            yield Problem(f"output[{index}]", f"output '{spec.name}' for ensemble '{config.name}' is not written")
    for tensor in sorted((written | read) - outputs - given):
        if tensor not in reached or tensor not in read:
            yield Problem(f"{_PATH}.step", f"ensemble tensor '{tensor}' is unused in ensemble '{config.name}'")


def _reached(ensemble: Ensemble, given: set[str]) -> set[str]:
    """The tensors that come to be, from the ensemble's inputs on; a circle of steps never starts."""
    reached, waiting = set(given), list(ensemble.steps)
    while True:
        ready = [step for step in waiting if reached.issuperset(step.input_map.values())]
        if not ready:
            return reached
        waiting = [step for step in waiting if step not in ready]
        for step in ready:
            reached.update(step.output_map.values())
