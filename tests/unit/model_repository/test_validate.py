"""`tidegate validate` and `tidegate init`."""

import io
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from model_repository.init_config import init_config
from model_repository.pbtxt import parse_text
from model_repository.validate import validate


def test_a_good_repository_has_no_findings(write_model: Any) -> None:
    folder = write_model("m")
    assert validate(folder.parent) == []
    assert validate(folder) == []


def test_every_fault_is_found_in_its_file_and_line(write_model: Any) -> None:
    lines = [
        "max_batch_size: -1",
        'model_operations { op_library_filename: "x" }',
        'instance_group { kind: KIND_CPU gpus: 0 name: "g" }',
    ]
    folder = write_model("m", "\n".join(lines))
    write_model("n", "dynamic_batchin { }")
    found = [str(finding).removeprefix(str(folder.parent)) for finding in validate(folder.parent)]
    assert [text.split(": ")[0] for text in found] == [
        "/m/config.pbtxt:6:1",
        "/m/config.pbtxt:5:1",
        "/m/config.pbtxt:7:33",
        "/n/config.pbtxt:5:1",
    ]
    assert found[-1].endswith("has no field 'dynamic_batchin'. Did you mean 'dynamic_batching'?")


def test_named_configs_are_checked_too(write_model: Any) -> None:
    folder = write_model("m")
    (folder / "configs").mkdir()
    (folder / "configs" / "big.pbtxt").write_text('backend: "identiti"')
    (finding,) = validate(folder)
    assert finding.file.endswith("configs/big.pbtxt")
    assert (finding.line, finding.suggestion) == (1, "identity")


def test_a_missing_version_or_model_file_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"')
    assert "put the model into" in str(validate(folder)[0])
    (folder / "1").mkdir()
    (finding,) = validate(folder)
    assert finding.file == str(folder / "1" / "model.onnx")
    assert "no such file" in finding.message
    (folder / "1" / "model.onnx").touch()
    assert validate(folder) == []


def test_nothing_to_check_is_a_finding(tmp_path: Path) -> None:
    assert "no such folder" in str(validate(tmp_path / "absent")[0])
    assert "holds no models" in str(validate(tmp_path)[0])


def test_the_example_repository_is_valid() -> None:
    examples = Path(__file__).parents[3] / "examples" / "model_repository"
    missing = examples / "densenet_onnx" / "1" / "model.onnx"  # put in place by examples.fetch_models
    assert [finding for finding in validate(examples) if finding.file != str(missing)] == []


def onnx_model() -> bytes:
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("Identity", ["A"], ["B"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("A", floats, ["n", 3])],
        [helper.make_tensor_value_info("B", floats, ["n", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = io.BytesIO()
    onnx.save(model, data)
    return data.getvalue()


def test_init_writes_a_config_that_says_what_the_file_says(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(onnx_model())
    assert init_config(version / "model.onnx") == f"wrote {tmp_path / 'm' / 'config.pbtxt'}"
    config = parse_text((tmp_path / "m" / "config.pbtxt").read_bytes(), "f")
    assert (config.name, config.backend, config.max_batch_size) == ("m", "onnxruntime", 4)
    assert [(spec.name, spec.datatype, spec.dims) for spec in (*config.inputs, *config.outputs)] == [
        ("A", "FP32", (3,)),
        ("B", "FP32", (3,)),
    ]
    assert validate(tmp_path / "m") == []
    with pytest.raises(ServingError, match="is there already") as raised:
        init_config(version / "model.onnx")
    assert raised.value.code is Code.ALREADY_EXISTS


def test_init_keeps_a_file_name_of_its_own(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "net.onnx").write_bytes(onnx_model())
    init_config(version / "net.onnx")
    config = parse_text((tmp_path / "m" / "config.pbtxt").read_bytes(), "f")
    assert config.default_model_filename == "net.onnx"
    assert validate(tmp_path / "m") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("m/1/absent.onnx", "no such file"),
        ("m/1/model.txt", "cannot tell the kind of model"),
        ("model.onnx", "is in no version folder"),
    ],
)
def test_init_says_what_it_cannot_do(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    if "absent" not in path:
        (tmp_path / path).write_bytes(b"x")
    with pytest.raises(ServingError, match=text):
        init_config(tmp_path / path)
    assert not list(tmp_path.rglob("config.pbtxt"))
