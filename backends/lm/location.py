"""Where a model's files are: a folder in Hugging Face's layout, a GGUF file, or inside an installed package."""

from importlib.util import find_spec
from pathlib import Path

from backends.api.errors import Code, ServingError


def find_model(location: str, base: Path) -> Path:
    """The GGUF file, or the folder with a config.json, that `location` names.

    `location` is a path, relative to `base` unless absolute, or `package:NAME`, optionally with a path inside
    (`package:NAME/file.gguf`). The package is found without importing it. A folder with one GGUF file and no
    config.json stands for that file. Raises ServingError(NOT_FOUND), or INVALID when the choice is not clear.
    """
    if location.startswith("package:"):
        path = _in_package(location.removeprefix("package:"), location)
    else:
        path = (base / location).absolute()
    if path.is_file() and path.suffix == ".gguf":
        return path
    if (path / "config.json").is_file():
        return path
    if not path.is_dir():
        what = "a .gguf file or a folder" if path.exists() else "a model there"
        raise ServingError(Code.NOT_FOUND, f"model location '{location}': expected {what}, got {path}")
    return _only_gguf(path, location)


def _in_package(inner: str, location: str) -> Path:
    name, _, rest = inner.partition("/")
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ServingError(Code.NOT_FOUND, f"model location '{location}': package '{name}' is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / rest


def _only_gguf(folder: Path, location: str) -> Path:
    found = sorted(folder.glob("*.gguf"))
    first_parts = [path for path in found if "-of-" not in path.name or "-00001-of-" in path.name]
    if not first_parts:
        raise ServingError(
            Code.NOT_FOUND,
            f"model location '{location}': expected config.json or a .gguf file in {folder}, got neither",
        )
    if len(first_parts) > 1:
        names = ", ".join(path.name for path in first_parts)
        raise ServingError(Code.INVALID, f"model location '{location}': expected one .gguf file, got {names}: name one")
    return first_parts[0]
