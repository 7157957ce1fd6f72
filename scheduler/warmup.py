"""Warm-up: what `model_warmup` asks an instance to run before it serves. Nothing of it is counted."""

import time
from pathlib import Path

import numpy as np

from backends.api.base import RequestInstance, TensorInstance
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, Warmup, WarmupInput
from backends.api.request import InferenceRequest, InferenceResponse
from backends.api.statistics import ModelStatistics
from backends.api.stream import ResponseStream
from backends.api.tensor import NUMPY_DTYPES, Tensor
from scheduler.batch import Waiting
from scheduler.endings import Endings
from scheduler.merge import BatchLayout
from scheduler.request_batch import RunningBatch
from scheduler.sequence_controls import SequenceControls

_PATIENCE = 600.0  # seconds a request of a custom model may take


def check_samples(config: ModelConfig) -> None:
    """Raises ServingError(INVALID) for a sample whose inputs are not those of the completed `config`.

    Those of a sequence model may also be its controls.
    """
    known = {spec.name for spec in config.inputs}
    required = [spec.name for spec in config.inputs if not spec.optional]
    for sample in config.warmup:
        where = f"model '{config.name}': warmup sample '{sample.name}'"
        unknown = [name for name in sample.inputs if name not in known]
        missing = [name for name in required if name not in sample.inputs]
        if unknown and config.sequence_batching is None:
            text = f"has input '{unknown[0]}', the inputs of the model are: {', '.join(sorted(known))}"
            raise ServingError(Code.INVALID, f"{where} {text}")
        if missing:
            raise ServingError(Code.INVALID, f"{where} lacks input '{missing[0]}', which the model needs")


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


def warm_up_requests(instance: RequestInstance, config: ModelConfig, layout: BatchLayout, folder: Path) -> None:
    """The same for an instance that takes requests."""
    controls = SequenceControls(config, with_slots=False) if config.sequence_batching else None
    for sample in config.warmup:
        for _ in range(max(1, sample.count)):
            requests = make_requests(config, sample, folder)
            for number, request in enumerate(requests):
                request.stream = _Unread()
                request.deadline = time.monotonic() + _PATIENCE
                if controls is not None:
                    request.sequence_id, request.sequence_start, request.sequence_end = number + 1, True, True
                    request.inputs = [*request.inputs, *controls.tensors(request, number)]
            _execute(instance, config, layout, requests)
            for request in requests:
                _check_answered(sample.name, request)


def _execute(
    instance: RequestInstance, config: ModelConfig, layout: BatchLayout, requests: list[InferenceRequest]
) -> None:
    statistics = ModelStatistics()  # nobody's
    endings = Endings(config.name, "", statistics, None, None)
    batch = [Waiting(request) for request in requests]
    while batch:
        instance.begin([RunningBatch(batch, layout, endings, statistics, decoupled=config.decoupled)])
        instance.drain()
        batch = [waiting for waiting in batch if waiting.again]
        for waiting in batch:
            waiting.again = waiting.request.sequence_start = False


class _Unread(ResponseStream[InferenceResponse]):
    """Keeps its end alone, so that its writer never waits for a reader."""

    def put(self, item: InferenceResponse) -> None:
        pass


def _check_answered(sample: str, request: InferenceRequest) -> None:
    try:
        request.stream.poll()
    except ServingError as error:
        raise ServingError(error.code, f"failed to run warmup sample '{sample}': {error}") from error


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
