"""A request's tensors against the model's configuration: names, datatypes, shapes, batch size.

Pure, and the same for every door a request comes through. Texts are Triton's (triton spec 1.3). What is checked are
headers alone, so nothing is converted for a request that will be refused; sizes of contents are checked where they
become tensors.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, TensorSpec

_BATCH_NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


class TensorHeader(Protocol):
    """What names and types a tensor, before its contents are looked at."""

    @property
    def name(self) -> str: ...
    @property
    def datatype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...


def check_inputs(inputs: Sequence[TensorHeader], config: ModelConfig, label: str) -> None:
    """Raise ServingError(INVALID) for the first thing wrong; `label` is the request's prefix in messages."""
    if not _are_as_configured(inputs, config):
        _find_fault(inputs, config, label)


def _are_as_configured(inputs: Sequence[TensorHeader], config: ModelConfig) -> bool:
    """The quick look that most requests pass: every configured input, in order, with a batch that fits."""
    if len(inputs) != len(config.inputs):
        return False
    batched = config.max_batch_size > 0
    batch = inputs[0].shape[0] if batched and inputs and inputs[0].shape else 1
    for given, spec in zip(inputs, config.inputs, strict=True):
        shape = given.shape
        if given.name != spec.name or given.datatype != spec.datatype or (batched and (not shape or shape[0] != batch)):
            return False
        if not _fits(shape[1:] if batched else shape, spec.dims):
            return False
    return not batched or 1 <= batch <= config.max_batch_size


def _fits(shape: Sequence[int], dims: tuple[int, ...]) -> bool:
    if len(shape) != len(dims):
        return False
    for got, want in zip(shape, dims, strict=True):  # noqa: SIM110 - twice as fast as all() on one or two dimensions
        if got < 0 or want not in (-1, got):
            return False
    return True


def _find_fault(inputs: Sequence[TensorHeader], config: ModelConfig, label: str) -> None:
    """The checks in Triton's order; passes inputs in another order, or without optional ones."""
    _check_names(inputs, config, label)
    specs = [_known_spec(given, config) for given in inputs]
    for given, spec in zip(inputs, specs, strict=True):
        if given.datatype != spec.datatype:
            raise ServingError(
                Code.INVALID,
                f"{label} inference input '{given.name}' data-type is '{given.datatype}', "
                f"but model '{config.name}' expects '{spec.datatype}'",
            )
    if config.max_batch_size > 0:
        _check_batch(inputs, config, label)
    for given, spec in zip(inputs, specs, strict=True):
        _check_shape(given, spec, config, label)


def check_outputs(names: Iterable[str], config: ModelConfig) -> None:
    for name in names:
        if config.output(name) is None:
            raise ServingError(Code.INVALID, f"unexpected inference output '{name}' for model '{config.name}'")


def _check_names(inputs: Sequence[TensorHeader], config: ModelConfig, label: str) -> None:
    given = {header.name for header in inputs}
    if len(given) != len(inputs):
        names = [header.name for header in inputs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ServingError(Code.INVALID, f"{label} input '{twice}' already exists in request")
    missing = [spec.name for spec in config.inputs if not spec.optional and spec.name not in given]
    if len(inputs) > len(config.inputs):
        raise _wrong_count(inputs, missing, config, label)
    if missing:
        for header in inputs:
            _known_spec(header, config)  # a misspelt name is the likelier reason
        raise _wrong_count(inputs, missing, config, label)


def _wrong_count(inputs: Sequence[TensorHeader], missing: list[str], config: ModelConfig, label: str) -> ServingError:
    most = len(config.inputs)
    least = sum(not spec.optional for spec in config.inputs)
    wanted = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
    return ServingError(
        Code.INVALID,
        f"{label} expected {wanted} but got {len(inputs)} inputs for model '{config.name}'. "
        f"Got input(s) [{_quoted(header.name for header in inputs)}], but missing required input(s) "
        f"[{_quoted(missing)}]. Please provide all required input(s).",
    )


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)


def _known_spec(given: TensorHeader, config: ModelConfig) -> TensorSpec:
    spec = config.input(given.name)
    if spec is None:
        raise ServingError(Code.INVALID, f"unexpected inference input '{given.name}' for model '{config.name}'")
    return spec


def _check_batch(inputs: Sequence[TensorHeader], config: ModelConfig, label: str) -> None:
    batch: int | None = None
    for given in inputs:
        if not given.shape:
            raise ServingError(
                Code.INVALID,
                f"{label} input '{given.name}' has no shape but model requires batch dimension for '{config.name}'",
            )
        if batch is not None and given.shape[0] != batch:
            raise ServingError(
                Code.INVALID, f"{label} input '{given.name}' batch size does not match other inputs for '{config.name}'"
            )
        batch = given.shape[0]
    if batch is not None and batch > config.max_batch_size:
        raise ServingError(
            Code.INVALID, f"{label} inference request batch-size must be <= {config.max_batch_size} for '{config.name}'"
        )
    if batch is not None and batch < 1:
        raise ServingError(
            Code.INVALID, f"{label} inference request batch-size must be >= 1 for '{config.name}', got {batch}"
        )


def _check_shape(given: TensorHeader, spec: TensorSpec, config: ModelConfig, label: str) -> None:
    batched = config.max_batch_size > 0
    shape = tuple(given.shape)
    inner = shape[1:] if batched else shape
    if _fits(inner, spec.dims):
        return
    expected = (-1, *spec.dims) if batched else spec.dims
    raise ServingError(
        Code.INVALID,
        f"{label} unexpected shape for input '{given.name}' for model '{config.name}'. "
        f"Expected {_shape_text(expected)}, got {_shape_text(shape)}.{_BATCH_NOTE if batched else ''}",
    )


def _shape_text(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
