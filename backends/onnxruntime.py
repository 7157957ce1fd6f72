"""ONNX models on ONNX Runtime.

Sessions are thread-safe, so the instances on one device share one: weights and thread pool are there once.
"""

import ctypes
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.registry import register
from backends.api.tensor import Tensor
from backends.gpus import num_cuda_gpus
from backends.onnx_config import DATATYPES, DEFAULT_MAX_BATCH_SIZE, OnnxTensor, complete
from backends.onnx_options import check_accelerators, providers, run_options, session_options

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : ")


class OnnxInstance:
    """Runs batches on a session; whose outputs are new arrays at every run."""

    def __init__(self, session: Any, outputs: Sequence[str], options: Any, *, runs_on_any_thread: bool) -> None:
        self.runs_on_any_thread = runs_on_any_thread
        self._session = session
        self._all = list(outputs)
        self._options = options
        self._datatypes = {node.name: DATATYPES.get(node.type, "") for node in session.get_outputs()}
        nodes = (*session.get_inputs(), *session.get_outputs())
        self._has_bfloat16 = any(node.type == "tensor(bfloat16)" for node in nodes)

    def execute(self, inputs: dict[str, Tensor], outputs: Sequence[str]) -> dict[str, Tensor]:
        names = list(outputs) or self._all
        try:
            if self._has_bfloat16:
                return self._run_values(inputs, names)
            feed = {name: _to_array(tensor) for name, tensor in inputs.items()}
            arrays = self._session.run(names, feed, self._options)
        except ServingError:
            raise
        except Exception as error:  # the library's exceptions share no base of their own
            raise _as_serving_error(error) from error
        return {name: self._to_tensor(name, array) for name, array in zip(names, arrays, strict=True)}

    def close(self) -> None:
        self._session = None

    def _to_tensor(self, name: str, array: np.ndarray) -> Tensor:
        datatype = self._datatypes[name]
        if datatype == "BYTES":
            return Tensor(name, datatype, array.shape, [_encode(item) for item in array.ravel()])
        return Tensor(name, datatype, array.shape, array)

    def _run_values(self, inputs: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
        """The way for BF16, which numpy does not know: values that carry their ONNX type."""
        feed = {name: _to_value(tensor) for name, tensor in inputs.items()}
        values = self._session.run_with_ort_values(names, feed, self._options)
        tensors = {}
        for name, value in zip(names, values, strict=True):
            if self._datatypes[name] == "BF16":
                tensors[name] = Tensor(name, "BF16", tuple(value.shape()), _copy_bits(value))
            else:
                tensors[name] = self._to_tensor(name, value.numpy())
        return tensors


class OnnxBackend:
    """One .onnx file. Sessions are opened when first needed, one a device, and live until `close`."""

    def __init__(self, config: ModelConfig, folder: Path, default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE) -> None:
        self._config = config
        self._default_max_batch_size = default_max_batch_size
        self._path = _model_file(config, folder)
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, int], Any] = {}

    @property
    def num_gpus(self) -> int:
        return num_cuda_gpus() if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else 0

    def complete(self, config: ModelConfig) -> ModelConfig:
        check_accelerators(config, self.num_gpus, onnxruntime.get_available_providers())
        session = self._session(self._first_placement())
        inputs = [_describe(node) for node in session.get_inputs()]
        outputs = [_describe(node) for node in session.get_outputs()]
        self._config = complete(config, inputs, outputs, self._default_max_batch_size)
        return self._config

    def instance(self, placement: Placement) -> OnnxInstance:
        names = [spec.name for spec in self._config.outputs]
        on_cpu = placement.kind == "CPU"  # where the time a run takes is time of the calling thread
        return OnnxInstance(self._session(placement), names, run_options(self._config), runs_on_any_thread=on_cpu)

    def close(self) -> None:
        with self._lock:
            self._sessions.clear()

    def _first_placement(self) -> Placement:
        kinds = {group.kind for group in self._config.instance_groups} or {"KIND_AUTO"}
        gpus = [gpu for group in self._config.instance_groups for gpu in group.gpus]
        if self.num_gpus and kinds & {"KIND_AUTO", "KIND_GPU"}:
            return Placement(self._config.name, "GPU", gpus[0] if gpus else 0)
        return Placement(self._config.name)

    def _session(self, placement: Placement) -> Any:
        key = (placement.kind, placement.device)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = self._open(placement)
            return session

    def _open(self, placement: Placement) -> Any:
        chosen = providers(self._config, placement, onnxruntime.get_available_providers())
        options = session_options(self._config)
        try:
            return onnxruntime.InferenceSession(str(self._path), options, providers=chosen)
        except Exception as error:
            text = _ERROR.sub("", str(error)).strip().replace(str(self._path), self._path.name)
            raise ServingError(
                Code.INVALID, f"model '{self._config.name}': cannot load '{self._path.name}': {text}"
            ) from error


@register("onnxruntime")
def onnx(config: ModelConfig, folder: Path, settings: Mapping[str, str]) -> OnnxBackend:
    return OnnxBackend(config, folder, int(settings.get("default-max-batch-size", DEFAULT_MAX_BATCH_SIZE)))


def _model_file(config: ModelConfig, folder: Path) -> Path:
    name = config.default_model_filename or "model.onnx"
    path = folder / name
    if path.is_dir():  # a model with its weights in files of their own
        path /= "model.onnx"
    if not path.is_file():
        raise ServingError(
            Code.NOT_FOUND, f"model '{config.name}': unable to find '{name}' in version folder '{folder.name}'"
        )
    return path


def _describe(node: Any) -> OnnxTensor:
    shape = node.shape
    dims = None if shape is None else tuple(size if isinstance(size, int) else -1 for size in shape)
    return OnnxTensor(node.name, node.type, dims)


def _to_array(tensor: Tensor) -> np.ndarray:
    if not isinstance(tensor.data, list):
        return tensor.data
    array = np.empty(len(tensor.data), dtype=object)
    try:
        array[:] = [item.decode() for item in tensor.data]
    except UnicodeDecodeError as error:
        raise ServingError(
            Code.INVALID, f"input '{tensor.name}': ONNX strings are UTF-8, got other bytes: {error.reason}"
        ) from None
    return array.reshape(tensor.shape)


def _encode(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def _to_value(tensor: Tensor) -> Any:
    if tensor.datatype == "BF16":
        bits = np.ascontiguousarray(tensor.data)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(_to_array(tensor))


def _copy_bits(value: Any) -> np.ndarray:
    """The 16-bit patterns of a BF16 value on the CPU, out of memory that is the library's."""
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    if size == 0:
        return np.empty(shape, np.uint16)
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint16).reshape(shape)


def _as_serving_error(error: Exception) -> ServingError:
    """The library's error without its frame; an argument it could not take is the caller's fault."""
    text = str(error)
    match = _ERROR.match(text)
    if match is None:
        code = Code.INVALID if isinstance(error, ValueError) else Code.INTERNAL
        return ServingError(code, f"onnx runtime error: {text}")
    code = Code.INVALID if match[1] == "2" else Code.INTERNAL
    return ServingError(code, f"onnx runtime error {match[1]}: {' '.join(text[match.end() :].split())}")
