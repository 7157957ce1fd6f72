"""Our answers beside those of a real Triton 2.51, as recorded; and, where one can be started, the recordings beside it.

Differences are named in `differences.py`, one by one, and told to users in docs/triton_differences.md.
TIDEGATE_RECORD=1 writes new recordings instead of comparing.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.server_process import START, ServerProcess, eventually
from tests.fakes.kserve import grpc_server, http_server, service
from tests.oracle import grpc_cases, grpc_server_cases, http_cases, http_server_cases
from tests.oracle.compare import check, check_all, record, recorded
from tests.oracle.differences import GRPC, HTTP, as_we_say
from tests.oracle.triton_models import write_repository
from tests.oracle.triton_server import ALL_MODELS, TritonUnavailableError, as_arguments, triton_server


@pytest.fixture(scope="module")
def our_http() -> Iterator[httpx.Client]:
    with http_server(service()) as where, httpx.Client(base_url=f"http://{where}", timeout=20) as http:
        yield http


@pytest.fixture(scope="module")
def our_grpc() -> Iterator[grpc.Channel]:
    with grpc_server(service()) as where, grpc.insecure_channel(where) as channel:
        yield channel


@pytest.mark.parametrize("case", http_cases.CASES)
def test_our_http_answer_is_tritons(our_http: httpx.Client, case: str) -> None:
    check(http_cases.send(our_http, http_cases.CASES[case]), recorded("http")[case], HTTP.get(case))


@pytest.mark.parametrize("case", grpc_cases.CASES)
def test_our_grpc_answer_is_tritons(our_grpc: grpc.Channel, case: str) -> None:
    check(grpc_cases.send(our_grpc, grpc_cases.CASES[case]), recorded("grpc")[case], GRPC.get(case))


def test_every_difference_is_about_a_case() -> None:
    assert HTTP.keys() <= {*http_cases.CASES, *http_server_cases.CASES, *http_server_cases.SCENARIOS}
    assert GRPC.keys() <= {*grpc_cases.CASES, *grpc_server_cases.CASES, *grpc_server_cases.SCENARIOS}


def test_no_two_cases_have_one_name() -> None:
    assert not http_cases.CASES.keys() & {*http_server_cases.CASES, *http_server_cases.SCENARIOS}
    assert not grpc_cases.CASES.keys() & {*grpc_server_cases.CASES, *grpc_server_cases.SCENARIOS}


@pytest.mark.slow
def test_a_whole_server_answers_as_triton_does(tmp_path: Path) -> None:
    flags = as_arguments({**ALL_MODELS, "allow_client_shm": "true"})
    server = ServerProcess(write_repository(tmp_path / "models"), *flags)
    try:
        assert eventually(server.is_ready, START)
        answers = ask_everything(server.address("HTTPService"), server.address("GRPCInferenceService"))
    finally:
        server.stop()
    check_all(answers["http"], recorded("http"), HTTP)
    check_all(answers["grpc"], recorded("grpc"), GRPC)


@pytest.mark.oracle
@pytest.mark.slow
def test_the_recordings_are_what_triton_answers(tmp_path: Path) -> None:
    try:
        with triton_server(tmp_path) as (http_address, grpc_address, *_):
            answers = ask_everything(http_address, grpc_address)
    except TritonUnavailableError as reason:
        pytest.skip(str(reason))
    for kind in answers:
        if os.environ.get("TIDEGATE_RECORD") == "1":
            record(kind, answers[kind])
        known = recorded(kind)
        assert {case: as_we_say(answer) for case, answer in answers[kind].items()} == {
            case: as_we_say(answer) for case, answer in known.items()
        }


def ask_everything(http_address: str, grpc_address: str) -> dict[str, dict[str, Any]]:
    """The answers of one server to every case."""
    (memory := Path("/dev/shm/tidegate_oracle")).write_bytes(http_cases.FOUR + bytes(48))
    try:
        with httpx.Client(base_url=f"http://{http_address}", timeout=20) as http:
            cases = http_cases.CASES | http_server_cases.CASES
            from_http: dict[str, Any] = {name: http_cases.send(http, case) for name, case in cases.items()}
            from_http |= {
                name: http_server_cases.play(http, steps) for name, steps in http_server_cases.SCENARIOS.items()
            }
        with grpc.insecure_channel(grpc_address) as channel:
            calls = grpc_cases.CASES | grpc_server_cases.CASES
            from_grpc: dict[str, Any] = {name: grpc_cases.send(channel, case) for name, case in calls.items()}
            for name, steps in grpc_server_cases.SCENARIOS.items():
                from_grpc[name] = [grpc_cases.send(channel, step) for step in steps]
    finally:
        memory.unlink()
    where = re.compile(r"/[^\s\"]*/models/")  # in tracebacks
    answers: dict[str, dict[str, Any]] = json.loads(where.sub("", json.dumps({"http": from_http, "grpc": from_grpc})))
    return answers
