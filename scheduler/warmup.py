"""Warm-up: what `model_warmup` asks an instance to run before it serves."""

from pathlib import Path

import numpy as np

from backends.api.base import TensorInstance
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, Warmup, WarmupInput
from backends.api.request import InferenceRequest
from backends.api.tensor import NUMPY_DTYPES, Tensor
from scheduler.merge import BatchLayout


def warm_up(instance: TensorInstance, config: ModelConfig, layout: BatchLayout, folder: Path) -> None:
    """Run every sample of `config` on `instance`; data files lie in `folder`, the model's `warmup`.

    Raises ServingError: INVALID for a sample that cannot be made, or what the model raised, named after the sample.
    """
    for sample in config.warmup:
        inputs = layout.merge(make_requests(config, sample, folder))
        for _ in range(max(1, sample.count)):
            try:
                instance.execute(inputs, [])
            except Exception as error:
                code = error.code if isinstance(error, ServingError) else Code.INTERNAL
                raise ServingError(code, f"failed to run warmup sample '{sample.name}': {error}") from error


def make_requests(config: ModelConfig, sample: Warmup, folder: Path) -> list[InferenceRequest]:
    """`batch_size` equal requests of one row each, or one request for a model without batching."""
    if sample.batch_size > max(1, config.max_batch_size):
        raise ServingError(
            Code.INVALID,
            f"warmup sample '{sample.name}' of model '{config.name}' has batch size {sample.batch_size}, "
            f"more than max_batch_size {config.max_batch_size}",
        )
    leading = (1,) if config.max_batch_size > 0 else ()
    tensors = [
        _make_tensor(sample.name, name, spec, leading + spec.dims, folder) for name, spec in sample.inputs.items()
    ]
    return [InferenceRequest(config.name, "", tensors) for _ in range(max(1, sample.batch_size))]


def _make_tensor(sample: str, name: str, spec: WarmupInput, shape: tuple[int, ...], folder: Path) -> Tensor:
    if any(size < 0 for size in shape):
        raise ServingError(
            Code.INVALID, f"warmup sample '{sample}': input '{name}' must have fixed dims, got {list(spec.dims)}"
        )
    count = int(np.prod(shape, dtype=np.int64))
    if spec.source not in ("zero_data", "random_data"):
        return _read_tensor(sample, name, spec, shape, folder / spec.source)
    is_random = spec.source == "random_data"
    generator = np.random.default_rng(0)  # the same at every load
    if spec.datatype == "BYTES":
        return Tensor(name, "BYTES", shape, [generator.bytes(8).hex().encode() if is_random else b""] * count)
    dtype = NUMPY_DTYPES[spec.datatype]
    if not is_random:
        data = np.zeros(shape, dtype)
    elif dtype.kind == "f":
        data = generator.random(shape).astype(dtype)
    else:
        data = generator.integers(0, 2 if dtype.kind == "b" else 128, shape).astype(dtype)
    return Tensor(name, spec.datatype, shape, data)


def _read_tensor(sample: str, name: str, spec: WarmupInput, shape: tuple[int, ...], path: Path) -> Tensor:
    where = f"warmup sample '{sample}': input '{name}'"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ServingError(Code.INVALID, f"{where}: cannot read data file '{path.name}': {error.strerror}") from error
    count = int(np.prod(shape, dtype=np.int64))
    if spec.datatype == "BYTES":
        items = _split_bytes(content)
        if items is None or len(items) != count:
            raise ServingError(Code.INVALID, f"{where}: data file '{path.name}' must hold {count} strings with lengths")
        return Tensor(name, "BYTES", shape, items)
    dtype = NUMPY_DTYPES[spec.datatype]
    if len(content) < count * dtype.itemsize:
        raise ServingError(
            Code.INVALID,
            f"{where}: data file '{path.name}' has {len(content)} bytes, expected {count * dtype.itemsize}",
        )
    return Tensor(name, spec.datatype, shape, np.frombuffer(content, dtype, count).reshape(shape))


def _split_bytes(content: bytes) -> list[bytes] | None:
    """The strings of a serialized BYTES tensor (4 bytes of length before each); None if it is cut off."""
    items = []
    position = 0
    while position < len(content):
        start = position + 4
        position = start + int.from_bytes(content[position:start], "little")
        if position > len(content):
            return None
        items.append(content[start:position])
    return items
