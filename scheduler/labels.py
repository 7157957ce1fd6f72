"""Class names of outputs, for the classification extension."""

from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig


def read_labels(config: ModelConfig, model_folder: Path) -> dict[str, tuple[str, ...]]:
    """Output -> its class names in order, one a line of its `label_filename`. Reads the disk.

    Raises ServingError(INVALID) for a file that is not there or is not text.
    """
    return {
        spec.name: _lines(config.name, spec.name, model_folder, spec.label_filename)
        for spec in config.outputs
        if spec.label_filename
    }


def _lines(model: str, output: str, folder: Path, file: str) -> tuple[str, ...]:
    try:
        return tuple((folder / file).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ServingError(
            Code.INVALID, f"model '{model}': label file '{file}' of output '{output}' cannot be read: {reason}"
        ) from error
