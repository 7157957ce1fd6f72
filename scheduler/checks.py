"""What can be said of a model and its version's folder without starting it, by its backend's name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from backends.api.model_config import ModelConfig
from backends.python.options import PythonOptions
from scheduler.language_config import check_language_model
from scheduler.load import check_tensor_model
from scheduler.pooling_config import check_pooling_model


def _check_custom_model(config: ModelConfig, folder: Path) -> None:
    PythonOptions.of(config)


CHECKS: Mapping[str, Callable[[ModelConfig, Path], None]] = {
    "identity": check_tensor_model,
    "llm": check_language_model,
    "onnxruntime": check_tensor_model,
    "pooling": check_pooling_model,
    "python": _check_custom_model,
}
"""Each raises ServingError as a load would. TorchScript and pickled modules stay closed: to open them is to run them."""
