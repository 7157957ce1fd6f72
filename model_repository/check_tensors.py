"""What the inputs and outputs of a configuration must hold."""

from collections import Counter
from collections.abc import Iterator

from backends.api.model_config import BatchInput, BatchOutput, ModelConfig, TensorSpec
from model_repository.problem import Problem

_IMAGE_FORMATS = ("FORMAT_NHWC", "FORMAT_NCHW")
_BATCH_INPUT_TYPES = ("INT32", "FP32")


def tensor_problems(config: ModelConfig, *, completed: bool) -> Iterator[Problem]:
    for field, specs in (("input", config.inputs), ("output", config.outputs)):
        yield from _duplicates(field, specs, config.name)
        for index, spec in enumerate(specs):
            path, subject = f"{field}[{index}]", f"model {field} '{spec.name}'"
            if not spec.name:
                yield Problem(path, f"model {field} must specify 'name' for {config.name}")
            if completed:
                yield from _missing(path, subject, spec, config.name)
            yield from _dims(path, subject, spec, config.name)
            yield from _reshape(path, subject, spec, config.name)
            yield from _format(path, subject, spec, config.name)
    for index, item in enumerate(config.batch_inputs):
        yield from _batch_input(f"batch_input[{index}]", item, config)
    for index, output in enumerate(config.batch_outputs):
        yield from _batch_output(f"batch_output[{index}]", output, config)


def _duplicates(field: str, specs: tuple[TensorSpec, ...], model: str) -> Iterator[Problem]:
    for name, count in Counter(spec.name for spec in specs).items():
        if name and count > 1:
            last = max(index for index, spec in enumerate(specs) if spec.name == name)
            yield Problem(f"{field}[{last}].name", f"model {field} '{name}' is specified {count} times for {model}")


def _missing(path: str, subject: str, spec: TensorSpec, model: str) -> Iterator[Problem]:
    if not spec.datatype:
        yield Problem(path, f"{subject} must specify 'data_type' for {model}")
    if not spec.dims:  # a scalar has dims [1] and an empty reshape
        yield Problem(path, f"{subject} must specify 'dims' for {model}")


def _dims(path: str, subject: str, spec: TensorSpec, model: str) -> Iterator[Problem]:
    rule = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    if any(dim < 1 and dim != -1 for dim in spec.dims):
        yield Problem(f"{path}.dims", f"{subject} {rule} for {model}")
    if spec.reshape is not None and any(dim < 1 and dim != -1 for dim in spec.reshape):
        yield Problem(f"{path}.reshape", f"{subject} reshape {rule} for {model}")


def _reshape(path: str, subject: str, spec: TensorSpec, model: str) -> Iterator[Problem]:
    """A reshape keeps the number of elements; between variable dims, span by span."""
    if spec.reshape is None:
        return
    given, wanted = _spans(spec.dims), _spans(spec.reshape)
    if len(given) != len(wanted):
        text = f"{subject} has different number of variable-size dimensions for dims and reshape for {model}"
        yield Problem(f"{path}.reshape", text)
    elif given != wanted:
        yield Problem(f"{path}.reshape", f"{subject} has different size for dims and reshape for {model}")


def _spans(dims: tuple[int, ...]) -> list[int]:
    """Element counts before, between and after the variable dims: (2, 3, -1, 4) -> [6, 4]."""
    spans = [1]
    for dim in dims:
        if dim == -1:
            spans.append(1)
        else:
            spans[-1] *= dim
    return spans


def _format(path: str, subject: str, spec: TensorSpec, model: str) -> Iterator[Problem]:
    if spec.format in _IMAGE_FORMATS and len(spec.dims) != 3:
        short = spec.format.removeprefix("FORMAT_")
        yield Problem(f"{path}.format", f"{subject} {short} format requires 3 dims, got {len(spec.dims)} for {model}")


def _batch_input(path: str, item: BatchInput, config: ModelConfig) -> Iterator[Problem]:
    yield from _sources(path, "input", item, config)
    if item.datatype not in _BATCH_INPUT_TYPES:
        yield Problem(
            path, f"batch input kind '{item.kind}' must have 'data_type' TYPE_INT32 or TYPE_FP32 for {config.name}"
        )
    if len(item.target_names) != 1:
        yield Problem(path, f"batch input kind '{item.kind}' expects 1 target name, got {len(item.target_names)}")


def _batch_output(path: str, item: BatchOutput, config: ModelConfig) -> Iterator[Problem]:
    yield from _sources(path, "output", item, config)
    for name in item.target_names:
        if config.outputs and config.output(name) is None:
            yield Problem(path, f"batch output '{name}' is not an output of {config.name}")


def _sources(path: str, field: str, item: BatchInput | BatchOutput, config: ModelConfig) -> Iterator[Problem]:
    if len(item.source_inputs) != 1:
        yield Problem(path, f"batch {field} kind '{item.kind}' expects 1 source input, got {len(item.source_inputs)}")
    for name in item.source_inputs:
        if config.inputs and config.input(name) is None:
            yield Problem(path, f"batch {field} kind '{item.kind}' has unknown source input '{name}' for {config.name}")
