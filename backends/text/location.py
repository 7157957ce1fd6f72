"""Where a model's files are, as its configuration says it."""

from importlib.util import find_spec
from pathlib import Path

from backends.api.errors import Code, ServingError

_PACKAGE = "package:"


def resolve_location(location: str | Path, relative_to: Path | None = None) -> Path:
    """The folder (Hugging Face layout) or GGUF file that `location` names.

    `location` is a path, taken from `relative_to` unless absolute, or `package:NAME`: the GGUF file or the model
    folder inside an installed package, which is found without importing it. A folder that holds no tokenizer or
    weights of its own but exactly one GGUF file stands for that file.

    Raises ServingError: NOT_FOUND where nothing is, INVALID where several GGUF files leave the choice open.
    """
    text = str(location)
    if text.startswith(_PACKAGE):
        return _model_in(_package_folder(text.removeprefix(_PACKAGE)), text)
    path = Path(text).expanduser()
    if relative_to is not None:
        path = relative_to / path
    if not path.exists():
        raise ServingError(Code.NOT_FOUND, f"model files: expected a folder or a GGUF file at '{path}', there is none")
    return _model_in(path, text) if path.is_dir() else path


def _package_folder(name: str) -> Path:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ServingError(
            Code.NOT_FOUND, f"model files: '{_PACKAGE}{name}' needs the package '{name}', which is not installed"
        )
    return Path(folders[0])


def _model_in(folder: Path, location: str) -> Path:
    if any((folder / name).exists() for name in ("config.json", "tokenizer.json", "tokenizer_config.json")):
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ServingError(Code.INVALID, f"model files: '{location}' holds several GGUF files, name one of: {names}")
    if not files:
        raise ServingError(
            Code.NOT_FOUND, f"model files: '{location}' holds neither a config.json or tokenizer.json nor a GGUF file"
        )
    return files[0]
