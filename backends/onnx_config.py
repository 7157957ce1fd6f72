"""What an ONNX file says about its model, and how a config is completed from it and checked against it.

The rules are those of Triton's onnxruntime backend: with every input's and output's first dimension free and no
max_batch_size given, the model batches up to --backend-config default-max-batch-size and dynamic batching is switched on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from backends.api.errors import Code, ServingError
from backends.api.model_config import DynamicBatching, ModelConfig, TensorSpec

DEFAULT_MAX_BATCH_SIZE = 4

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    "tensor(bfloat16)": "BF16",
}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """An input or output as the file declares it: `type` in ONNX Runtime's words, -1 for a free dimension.

    `shape` None: not even the rank is known.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None


def complete(
    config: ModelConfig,
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> ModelConfig:
    """`config` with everything the file knows. Raises ServingError(INVALID) where the two disagree."""
    max_batch_size = config.max_batch_size
    dynamic_batching = config.dynamic_batching
    if max_batch_size == 0 and default_max_batch_size and _may_batch(config, inputs, outputs):
        max_batch_size = default_max_batch_size
        if max_batch_size > 1 and dynamic_batching is None and config.sequence_batching is None:
            dynamic_batching = DynamicBatching()
    completed = replace(
        config,
        max_batch_size=max_batch_size,
        dynamic_batching=dynamic_batching,
        inputs=config.inputs or tuple(_spec(config.name, "input", tensor, max_batch_size) for tensor in inputs),
        outputs=config.outputs or tuple(_spec(config.name, "output", tensor, max_batch_size) for tensor in outputs),
    )
    _check(completed, inputs, outputs)
    return completed


def _may_batch(config: ModelConfig, inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor]) -> bool:
    """Whether the file has a batch dimension, and what the config lists leaves it out."""
    if any(not tensor.shape or tensor.shape[0] != -1 for tensor in (*inputs, *outputs)):
        return False
    known = {tensor.name: tensor for tensor in (*inputs, *outputs)}
    for spec in (*config.inputs, *config.outputs):
        tensor = known.get(spec.name)
        if tensor is not None and tensor.shape is not None and len(_model_dims(spec)) == len(tensor.shape):
            return False
    return True


def _model_dims(spec: TensorSpec) -> tuple[int, ...]:
    return spec.dims if spec.reshape is None else spec.reshape


def _spec(model: str, role: str, tensor: OnnxTensor, max_batch_size: int) -> TensorSpec:
    datatype = DATATYPES.get(tensor.type)
    if datatype is None or tensor.shape is None:
        raise ServingError(
            Code.INVALID,
            f"model '{model}': {role} '{tensor.name}' is of type {tensor.type}, which cannot be served as it is; "
            f"list the {role}s to serve in the config",
        )
    dims = tensor.shape[1:] if max_batch_size else tensor.shape
    if not dims:  # the protocol has no tensor without dimensions
        return TensorSpec(tensor.name, datatype, (1,), reshape=())
    return TensorSpec(tensor.name, datatype, dims)


def _check(config: ModelConfig, inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor]) -> None:
    generated = {name for rule in config.batch_inputs for name in rule.target_names}
    given = {spec.name for spec in config.inputs if not spec.optional} | generated
    wanted = {tensor.name for tensor in inputs}
    for role, specs, tensors in (("input", config.inputs, inputs), ("output", config.outputs, outputs)):
        by_name = {tensor.name: tensor for tensor in tensors}
        for spec in specs:
            tensor = by_name.get(spec.name)
            if tensor is None:
                raise ServingError(
                    Code.INVALID,
                    f"model '{config.name}': unexpected inference {role} '{spec.name}', "
                    f"allowed {role}s are: {', '.join(by_name)}",
                )
            _check_tensor(config, role, spec, tensor)
    if missing := sorted(wanted - given - {spec.name for spec in config.inputs}):
        raise ServingError(
            Code.INVALID,
            f"unable to load model '{config.name}', configuration expects {len(config.inputs)} inputs, "
            f"model provides {len(inputs)}: input(s) {missing} are missing in the configuration",
        )


def _check_tensor(config: ModelConfig, role: str, spec: TensorSpec, tensor: OnnxTensor) -> None:
    datatype = DATATYPES.get(tensor.type, tensor.type)
    if spec.datatype != datatype:
        raise ServingError(
            Code.INVALID,
            f"unable to load model '{config.name}', configuration expects datatype {spec.datatype} for {role} "
            f"'{spec.name}', model provides {datatype}",
        )
    if tensor.shape is None or spec.allow_ragged_batch or _is_scattered(config, spec.name):
        return
    if config.max_batch_size and (not tensor.shape or tensor.shape[0] not in (-1, config.max_batch_size)):
        raise ServingError(
            Code.INVALID,
            f"model '{config.name}', tensor '{spec.name}': for the model to support batching the shape should have at "
            f"least 1 dimension and the first dimension must be -1; but shape expected by the model is {list(tensor.shape)}",
        )
    expected = tensor.shape[1:] if config.max_batch_size else tensor.shape
    dims = _model_dims(spec)
    if len(dims) != len(expected):
        raise ServingError(
            Code.INVALID,
            f"model '{config.name}', tensor '{spec.name}': the model expects {len(expected)} dimensions "
            f"(shape {list(expected)}) but the model configuration specifies {len(dims)} dimensions "
            f"(shape {list(dims)})",
        )
    # a variable dimension in the config is allowed where the file fixes one: the run then says what fits
    if any(mine not in (theirs, -1) and theirs != -1 for mine, theirs in zip(dims, expected, strict=True)):
        raise ServingError(
            Code.INVALID,
            f"model '{config.name}', tensor '{spec.name}': the model expects shape {list(expected)} but the model "
            f"configuration specifies shape {list(dims)}",
        )


def _is_scattered(config: ModelConfig, name: str) -> bool:
    return any(name in rule.target_names for rule in config.batch_outputs)
