"""Small ONNX files for tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

Dims = Sequence[int | str]


def write(folder: Path, model: ModelProto, name: str = "model.onnx") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(model.SerializeToString())
    return folder


def build(nodes, inputs, outputs, weights=()) -> ModelProto:
    """`inputs` and `outputs` are (name, TensorProto type, dims)."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(*item) for item in inputs],
        [helper.make_tensor_value_info(*item) for item in outputs],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def identity(dims: Dims = ("N", 4), datatype: int = TensorProto.FLOAT) -> ModelProto:
    """y = x"""
    return build([helper.make_node("Identity", ["x"], ["y"])], [("x", datatype, dims)], [("y", datatype, dims)])


def add_sub(dims: Dims = ("N", 16)) -> ModelProto:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, INT32"""
    names = ["INPUT0", "INPUT1"]
    nodes = [helper.make_node("Add", names, ["OUTPUT0"]), helper.make_node("Sub", names, ["OUTPUT1"])]
    kind = TensorProto.INT32
    return build(nodes, [(name, kind, dims) for name in names], [(f"OUTPUT{i}", kind, dims) for i in (0, 1)])


def pick() -> ModelProto:
    """y = table[i]: fails while it runs for an index out of range"""
    table = numpy_helper.from_array(np.arange(4, dtype=np.float32), "table")
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    return build(nodes, [("i", TensorProto.INT64, ["N", 1])], [("y", TensorProto.FLOAT, ["N", 1])], [table])
