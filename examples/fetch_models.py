"""Puts the example repositories' model files in place, from installed packages: nothing is downloaded.

python -m examples.fetch_models
"""

import sys
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).parent
DENSENET = "backend/test/data/light/light_densenet121.onnx"  # inside the package onnx


def main() -> int:
    """0 when every file is in place, 1 with the reason when one cannot be."""
    densenet = EXAMPLES / "model_repository" / "densenet_onnx" / "1" / "model.onnx"
    accumulator = EXAMPLES / "pipelines" / "running_sum_onnx" / "1" / "model.onnx"
    source = _package_file("onnx", DENSENET)
    if source is None and not densenet.exists():
        print(f"{densenet}: the package onnx, which has this model, is not installed", file=sys.stderr)
        return 1
    for target, content in ((densenet, lambda: source.read_bytes()), (accumulator, _accumulator)):
        if not target.exists():
            partial = target.with_suffix(".partial")
            partial.write_bytes(content())
            partial.replace(target)  # so that a reader never sees half a file
            print(target.relative_to(EXAMPLES.parent))
    return 0


def _accumulator() -> bytes:
    """SUM = NUMBER + SUM_BEFORE, INT32 [rows, 1]."""
    from onnx import TensorProto, helper

    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", 1])
        for name in ("NUMBER", "SUM_BEFORE", "SUM")
    }
    node = helper.make_node("Add", ["NUMBER", "SUM_BEFORE"], ["SUM"])
    graph = helper.make_graph([node], "running_sum", [tensors["NUMBER"], tensors["SUM_BEFORE"]], [tensors["SUM"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _package_file(package: str, relative: str) -> Path | None:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    return next((path for folder in folders if (path := Path(folder) / relative).is_file()), None)


if __name__ == "__main__":
    sys.exit(main())
