"""The command line: what is said to somebody who mistypes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit status."""
    monkeypatch.setattr("sys.argv", ["tidegate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage: tidegate COMMAND"),
        (["serv"], "there is no command 'serv'"),
        (["serve"], "--model-repository: expected a folder with models, got none"),
        (["serve", "--model-repository", ""], "--model-repository: expected a folder with models, got none"),
        (
            ["serve", "--model-repository", "nowhere", "--http-port", "0"],
            "--model-repository: no such folder: 'nowhere'",
        ),
        (
            ["serve", "--model-repository", ".", "--log-file", "/dev/null/log"],
            "--log-file: cannot write '/dev/null/log'",
        ),
        (["validate", "--help"], "usage: tidegate validate FOLDER"),
        (["init"], "usage: tidegate init"),
    ],
)
def test_bad_usage_exits_2_and_says_why(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert said in capsys.readouterr().err


def test_what_is_said_of_the_flags_is_a_line_of_the_log(tmp_path: Path) -> None:
    stops = ["--trace-config", "rate=0"]  # before a port is opened
    flags = ["--model-repository", str(tmp_path), "--log-format", "json", "--http-thread-count", "8", *stops]
    ended = subprocess.run([sys.executable, "-m", "gateway", "serve", *flags], capture_output=True, text=True)
    first, last = ended.stderr.splitlines()
    assert json.loads(first)["message"] == "--http-thread-count has no effect: one event loop serves HTTP"
    assert (ended.returncode, "sample rate must be non-zero" in last) == (2, True)


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out[0].isdigit()


def test_a_repository_without_faults_is_valid_and_one_without_models_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "validate", str(tmp_path)) == 1
    assert "holds no models" in capsys.readouterr().out
    (tmp_path / "m" / "1").mkdir(parents=True)
    tensors = 'input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "B" data_type: TYPE_FP32 dims: 1 }'
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "identity" {tensors}')
    assert run(monkeypatch, "validate", str(tmp_path)) == 0
    assert capsys.readouterr().out == "1 model, no faults\n"


def test_validate_warns_of_a_parameter_that_its_backend_ignores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    tensors = 'input { name: "A" data_type: TYPE_FP32 dims: 1 } output { name: "B" data_type: TYPE_FP32 dims: 1 }'
    parameter = 'parameters { key: "execute_delay" value { string_value: "1" } }'
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "identity" {tensors}\n{parameter}')
    assert run(monkeypatch, "validate", str(tmp_path)) == 0
    warning, result = capsys.readouterr().out.splitlines()
    text = "config.pbtxt:2:1: warning: parameter 'execute_delay' is ignored by backend 'identity', did you mean 'execute_delay_ms'?"
    assert warning.endswith(text)
    assert result == "1 model, no faults"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('backend: "identity"', "expects as many outputs as inputs"),
        ('backend: "python" parameters { key: "MAX_CONCURRENCY" value { string_value: "x" } }', "'MAX_CONCURRENCY'"),
        ('backend: "onnxruntime"', "cannot load 'model.onnx'"),
    ],
)
def test_validate_finds_what_the_load_of_a_model_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: str, text: str
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    for name in ("model.onnx", "model.py"):
        (tmp_path / "m" / "1" / name).write_text("cut off")
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    assert run(monkeypatch, "validate", str(tmp_path)) == 1
    assert text in capsys.readouterr().out


def test_validate_knows_the_parameters_of_a_language_model_and_looks_for_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text('backend: "llm" parameters { key: "max_num_seqs" value { string_value: "abc" } }')
    assert run(monkeypatch, "validate", str(tmp_path)) == 1
    assert "'max_num_seqs': expected a whole number from 1 to 4096, got 'abc'" in capsys.readouterr().out
    config.write_text('backend: "llm"')
    assert run(monkeypatch, "validate", str(tmp_path)) == 1
    assert "expected config.json or a .gguf file" in capsys.readouterr().out


def test_validate_knows_the_parameters_of_an_embedding_model_and_reads_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text('backend: "pooling" parameters { key: "poling" value { string_value: "cls" } }')
    assert run(monkeypatch, "validate", str(tmp_path)) == 1
    assert "unknown parameter 'poling', did you mean 'pooling'?" in capsys.readouterr().out
    config.write_text('backend: "pooling"')
    (tmp_path / "m" / "1" / "config.json").write_text('{"model_type": "bert"}')
    assert run(monkeypatch, "validate", str(tmp_path)) == 1
    assert "field 'hidden_size': expected an integer, got nothing" in capsys.readouterr().out
