"""Backend name -> factory. A backend's library is imported when a model first needs it, so an absent
library fails that model alone, by name."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from backends.api.base import BackendFactory, TensorBackend
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig

_MODULES = {
    "identity": "backends.identity",
    "onnxruntime": "backends.onnxruntime",
    "pytorch": "backends.pytorch",
}
_OPENED_APART = ("llm", "pooling", "python")
"""Backends that are no `TensorBackend` of a version folder alone: whoever loads models knows how they start."""
_ONNX = "serve the model as ONNX with backend 'onnxruntime'"
_ELSEWHERE = {
    "tensorrt": f"{_ONNX} and the gpu_execution_accelerator 'tensorrt', which builds the plan itself",
    "tensorflow": f"{_ONNX} (tf2onnx converts it)",
    "openvino": f"{_ONNX}, and with the cpu_execution_accelerator 'openvino' where onnxruntime has it",
    "vllm": "serve the weights with backend 'llm', which takes the same inputs",
    "tensorrtllm": "serve the weights with backend 'llm'",
    "dali": "decode and resize in a custom model (backend 'python')",
    "fil": f"{_ONNX} (onnxmltools converts trees)",
}
"""Triton's backends that are not here -> what to do instead."""
_FACTORIES: dict[str, BackendFactory] = {}


def register(name: str) -> Callable[[BackendFactory], BackendFactory]:
    def add(factory: BackendFactory) -> BackendFactory:
        _FACTORIES[name] = factory
        return factory

    return add


def known_backends() -> list[str]:
    """Every name that `backend` may have in a configuration."""
    return sorted({*_MODULES, *_FACTORIES, *_OPENED_APART})


def absent(name: str) -> str:
    """Why there is no such backend, and what there is."""
    instead = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else f", this server has: {', '.join(known_backends())}"
    return f"unable to find backend library for backend '{name}'{instead}"


def open_backend(config: ModelConfig, folder: Path, settings: Mapping[str, str] | None = None) -> TensorBackend:
    """The backend of `config.backend` over a version folder; `settings` are the server's for this backend.

    Raises ServingError: INVALID for a name nobody registered, UNAVAILABLE for a library that is not installed.
    """
    name = config.backend
    if name not in _FACTORIES:
        module = _MODULES.get(name)
        if module is None:
            raise ServingError(Code.INVALID, f"model '{config.name}': {absent(name)}")
        try:
            import_module(module)
        except ImportError as error:
            raise ServingError(
                Code.UNAVAILABLE,
                f"model '{config.name}': backend '{name}' needs a package that is not installed: {error}",
            ) from error
    return _FACTORIES[name](config, folder, settings or {})
