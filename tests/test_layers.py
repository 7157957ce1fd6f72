"""Imports point down: DESIGN's levels, read from the code itself."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVELS = {
    "backends.api": 0,
    "backends": 1,
    "kvcache": 1,
    "scheduler": 2,
    "model_repository": 2,
    "openai_api": 3,
    "gateway": 4,
}
PACKAGES = sorted({name.split(".")[0] for name in LEVELS})
# how many ms the API process may not spend on importing: only these may import heavy libraries at module level
HEAVY = {"torch", "transformers", "numba", "onnxruntime", "llvmlite"}
HEAVY_ALLOWED = ("backends/lm/", "backends/pooling/", "backends/pytorch", "backends/onnx", "backends/torch_program")


def room_of(module: str) -> str | None:
    """The longest prefix of `module` that DESIGN gives a level."""
    parts = module.split(".")
    return next((room for n in range(len(parts), 0, -1) if (room := ".".join(parts[:n])) in LEVELS), None)


def imports_of(path: Path) -> list[tuple[int, str, bool]]:
    """(line, module, at module level) of every import in a file."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    found: list[tuple[int, str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}", id(node) in top) for alias in node.names]
    return found


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_there_is_something_to_read() -> None:
    assert len(sources()) > 10


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    own = room_of(module)
    assert own is not None
    for line, imported, _ in imports_of(path):
        room = room_of(imported)
        if room is None or room == own:
            continue
        assert LEVELS[room] < LEVELS[own], f"{path}:{line}: {own} (level {LEVELS[own]}) imports {imported}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_are_imported_on_use(path: Path) -> None:
    if str(path.relative_to(ROOT)).startswith(HEAVY_ALLOWED):
        return
    heavy = [(line, name) for line, name, at_top in imports_of(path) if at_top and name.split(".")[0] in HEAVY]
    assert not heavy, f"{path}: {heavy}"
