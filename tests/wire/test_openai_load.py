"""The load generator against the OpenAI face."""

import json

import pytest

from bench.chat import main
from tests.unit.openai_api.scripted import ScriptedModel, says
from tests.wire.openai_server import wire_server


@pytest.fixture(scope="module")
def server():
    with wire_server() as running:
        running.serve(ScriptedModel(says("x" * 8)))
        yield running


@pytest.mark.parametrize("flags", [["--api", "chat"], ["--shared-prefix", "16"], ["--rate", "500"]])
def test_a_benchmark_reports_what_it_sent(server, tmp_path, capsys, flags):
    report = tmp_path / "report.json"
    lengths = ["--prompt-tokens", "64", "--output-tokens", "8", "--token-ids", "0", "200"]
    amount = ["--concurrency", "1", "3", "--requests", "6", "--runs", "2", "--no-progress", "--json", str(report)]
    assert main(["--url", server.url, *lengths, *amount, *flags]) == 0
    found = json.loads(report.read_text())
    assert found["settings"]["model"] == "chat"
    assert "api_key" not in found["settings"]
    for point in found["points"]:
        assert len(point["runs"]) == 2
        for run in point["runs"]:
            assert (run["requests"], run["errors"], run["completion_tokens"]) == (6, 0, 8)
            assert run["prompt_tokens"] == pytest.approx(64, abs=8)
    assert "tok/s" in capsys.readouterr().out


def test_failures_are_counted_and_told(server, capsys):
    flags = ["--model", "nope", "--runs", "1", "--requests", "2", "--no-progress"]
    assert main(["--url", server.url, *flags]) == 1
    assert "model_not_found" in capsys.readouterr().err


def test_an_endpoint_that_is_not_there_is_said_in_one_line(capsys):
    assert main(["--url", "http://127.0.0.1:9/v1", "--no-progress"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
