"""What a configuration must hold to be served, with Triton's words for what it does not.

`problems` is pure: config in, problems out. It runs twice: before a model is loaded (`completed` False, what the
backend may still fill in is not asked for), and on the config the loaded model reports.
"""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import PurePosixPath

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from model_repository.check_scheduling import scheduling_problems
from model_repository.check_tensors import tensor_problems
from model_repository.complete import ENSEMBLE
from model_repository.problem import Problem

_BACKEND_MAY_CHANGE = frozenset(
    {"max_batch_size", "inputs", "outputs", "dynamic_batching", "sequence_batching", "decoupled"}
)


def check(config: ModelConfig, *, completed: bool) -> None:
    """Raises ServingError(INVALID) for the first problem, with `param` the field's path."""
    for problem in problems(config, completed=completed):
        raise ServingError(Code.INVALID, problem.message, param=problem.path)


def check_reported(given: ModelConfig, reported: ModelConfig) -> None:
    """Checks the config of a loaded model: complete, sound, and changed by its backend only where it may.

    Raises ServingError: INVALID for a config that cannot be served, INTERNAL for a backend that overstepped.
    """
    for item in fields(ModelConfig):
        if item.name not in _BACKEND_MAY_CHANGE and getattr(given, item.name) != getattr(reported, item.name):
            raise ServingError(
                Code.INTERNAL,
                f"backend '{given.backend}' changed '{item.name}' of model '{given.name}', which it may not",
            )
    check(reported, completed=True)


def problems(config: ModelConfig, *, completed: bool) -> Iterator[Problem]:
    """Everything wrong with `config`. Whether a GPU is there is the scheduler's to say: it knows what a backend can use."""
    if config.max_batch_size < 0:
        yield Problem("max_batch_size", f"'max_batch_size' must be non-negative value for {config.name}")
    yield from _version_problems(config)
    yield from _file_problems(config)
    yield from tensor_problems(config, completed=completed)
    yield from scheduling_problems(config)
    yield from _group_problems(config)
    yield from _warmup_problems(config)


def _version_problems(config: ModelConfig) -> Iterator[Problem]:
    for version in config.version_policy.specific:
        if version < 1:
            yield Problem(
                "version_policy", f"version policy 'specific' lists {version}, versions start at 1 for {config.name}"
            )


def _file_problems(config: ModelConfig) -> Iterator[Problem]:
    named = {"default_model_filename": config.default_model_filename}
    named |= {f"output[{index}].label_filename": spec.label_filename for index, spec in enumerate(config.outputs)}
    for index, sample in enumerate(config.warmup):
        named |= {f"model_warmup[{index}].inputs": item.source for item in sample.inputs.values()}
    for path, file in named.items():
        if file.startswith("/") or ".." in PurePosixPath(file).parts:
            yield Problem(path, f"'{file}' must be a path inside the folder of model {config.name}")


def _group_problems(config: ModelConfig) -> Iterator[Problem]:
    if config.platform == ENSEMBLE and config.instance_groups:
        yield Problem("instance_group", f"instance group should not be specified for ensemble '{config.name}'")
        return
    for index, group in enumerate(config.instance_groups):
        path, subject = f"instance_group[{index}]", f"instance group {group.name} of model {config.name}"
        if group.count < 1:
            yield Problem(f"{path}.count", f"{subject} must have 'count' >= 1, got {group.count}")
        if group.kind == "KIND_CPU" and group.gpus:
            yield Problem(f"{path}.gpus", f"{subject} has kind {group.kind} but specifies one or more GPU")
        for resource in group.resources:
            if not resource.name:
                yield Problem(f"{path}.rate_limiter", f"{subject} has a rate limiter resource without a name")


def _warmup_problems(config: ModelConfig) -> Iterator[Problem]:
    for index, sample in enumerate(config.warmup):
        path, subject = f"model_warmup[{index}]", f"warm-up sample '{sample.name}' of model {config.name}"
        if sample.batch_size > max(config.max_batch_size, 1):
            yield Problem(
                f"{path}.batch_size", f"{subject} has 'batch_size' {sample.batch_size} > {config.max_batch_size}"
            )
        for name, item in sample.inputs.items():
            if not item.datatype:
                yield Problem(f"{path}.inputs", f"{subject} must specify 'data_type' for input '{name}'")
            if not item.source:
                yield Problem(
                    f"{path}.inputs",
                    f"{subject} must specify 'zero_data', 'random_data' or 'input_data_file' for input '{name}'",
                )
            if any(dim < 1 for dim in item.dims):
                yield Problem(
                    f"{path}.inputs", f"{subject} must have fixed dims for input '{name}', got {list(item.dims)}"
                )
