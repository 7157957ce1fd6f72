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


def test_files_that_a_configuration_names_must_be_there(write_model: Any) -> None:
    sample = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 input_data_file: "one" } }'
    folder = write_model(
        "m", f'output {{ name: "L" data_type: TYPE_FP32 dims: 4 label_filename: "l.txt" }}\nmodel_warmup {{ {sample} }}'
    )
    assert [str(Path(finding.file).relative_to(folder)) for finding in validate(folder)] == ["l.txt", "warmup/one"]
    (folder / "l.txt").touch()
    (folder / "warmup").mkdir()
    (folder / "warmup" / "one").touch()
    assert validate(folder) == []


def ensemble(*steps: str) -> str:
    tensors = ["i", *(f"t{number}" for number in range(1, len(steps))), "o"]
    lines = (
        f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "IN" value: "{given}" }} '
        f'output_map {{ key: "OUT" value: "{made}" }} }}'
        for step, given, made in zip(steps, tensors, tensors[1:], strict=False)
    )
    spec = "data_type: TYPE_FP32 dims: 4"
    scheduling = "\n".join(lines)
    return (
        f'platform: "ensemble" input {{ name: "i" {spec} }} output {{ name: "o" {spec} }}\n'
        f"ensemble_scheduling {{\n{scheduling}\n}}"
    )


def write_ensemble(repository: Path, name: str, *steps: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(ensemble(*steps))


def test_an_ensembles_steps_must_be_in_the_repository(write_model: Any) -> None:
    repository = write_model("m").parent
    write_ensemble(repository, "e", "m", "absent")
    (finding,) = validate(repository)
    assert "ensemble 'e' needs model 'absent', which is not in this repository" in finding.message
    assert (Path(finding.file).parent.name, finding.line) == ("e", 4)
    assert validate(repository / "e") == [finding]


def test_a_circle_of_ensembles_is_told_by_each_in_it(write_model: Any) -> None:
    repository = write_model("m").parent
    write_ensemble(repository, "a", "m", "b")
    write_ensemble(repository, "b", "c")
    write_ensemble(repository, "c", "a")
    write_ensemble(repository, "outside", "a", "m")
    write_ensemble(repository, "own", "own")
    found = {Path(finding.file).parent.name: finding.message for finding in validate(repository)}
    assert found.keys() == {"a", "b", "c", "own"}
    assert found["a"].endswith("'b' needs 'a', of which it is a step")
    assert found["own"].endswith("'own' needs itself")


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("01", "without leading zeros, got '01'"),
        ("v1", "got 'v1'"),
        ("-1", "got '-1'"),
        ("other", "put the model into"),
    ],
)
def test_a_folder_that_was_meant_as_a_version_is_named(tmp_path: Path, folder: str, text: str) -> None:
    (tmp_path / "m" / folder).mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").touch()
    (finding,) = validate(tmp_path)
    assert text in finding.message


def test_a_model_file_that_links_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").symlink_to(tmp_path / "gone")
    (finding,) = validate(tmp_path / "m")
    assert "'1/model.onnx' links to what is not there" in finding.message
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntime"')
    (finding,) = validate(tmp_path / "m")
    assert "links to what is not there, expected the model of backend 'onnxruntime' here" in finding.message


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
        ("m/1/model.txt", "expected a file that names its inputs and outputs: .onnx. For any other"),
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
