"""Puts the example repository's model files in place, from installed packages: nothing is downloaded.

python -m examples.fetch_models
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).parent / "model_repository"
DENSENET = "backend/test/data/light/light_densenet121.onnx"  # inside the package onnx


def main() -> int:
    """0 when every file is in place, 1 with the reason when one cannot be."""
    target = REPOSITORY / "densenet_onnx" / "1" / "model.onnx"
    if target.exists():
        return 0
    source = _package_file("onnx", DENSENET)
    if source is None:
        print(f"{target}: the package onnx, which has this model, is not installed", file=sys.stderr)
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    shutil.copyfile(source, partial)
    partial.replace(target)  # so that a reader never sees half a file
    print(f"{target.relative_to(REPOSITORY.parent.parent)} from {source.name}")
    return 0


def _package_file(package: str, relative: str) -> Path | None:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    return next((path for folder in folders if (path := Path(folder) / relative).is_file()), None)


if __name__ == "__main__":
    sys.exit(main())
