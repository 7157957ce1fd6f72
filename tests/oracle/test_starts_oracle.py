"""As `test_kserve_oracle.py`, for servers started with other flags."""

import os
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.server_process import START, ServerProcess, eventually
from tests.oracle import grpc_cases, http_cases
from tests.oracle.compare import check_all, record, recorded
from tests.oracle.differences import STARTS as DIFFERENCES
from tests.oracle.differences import as_we_say
from tests.oracle.starts import STARTS, Start
from tests.oracle.triton_models import write_repository
from tests.oracle.triton_server import TritonUnavailableError, as_arguments, triton_server

pytestmark = pytest.mark.slow


def ask(start: Start, http_address: str, grpc_address: str) -> dict[str, Any]:
    with httpx.Client(base_url=f"http://{http_address}", timeout=20) as http:
        answers = {f"http: {name}": http_cases.send(http, case) for name, case in start.http.items()}
    with grpc.insecure_channel(grpc_address) as channel:
        answers |= {f"grpc: {name}": grpc_cases.send(channel, call) for name, call in start.grpc.items()}
    return answers


@pytest.mark.parametrize("name", STARTS)
def test_a_server_started_so_answers_as_triton_does(tmp_path: Path, name: str) -> None:
    start = STARTS[name]
    server = ServerProcess(write_repository(tmp_path / "models", *start.models), *as_arguments(start.flags))
    try:
        assert eventually(lambda: server.said("ready: "), START)
        answers = ask(start, server.address("HTTPService"), server.address("GRPCInferenceService"))
    finally:
        server.stop()
    check_all(answers, recorded("starts")[name], DIFFERENCES.get(name, {}))


@pytest.mark.oracle
@pytest.mark.parametrize("name", STARTS)
def test_the_recording_is_what_triton_answers(tmp_path: Path, name: str) -> None:
    start = STARTS[name]
    repository = write_repository(tmp_path / "models", *start.models)
    try:
        with triton_server(tmp_path, repository, start.flags) as (http_address, grpc_address, *_):
            answers = ask(start, http_address, grpc_address)
    except TritonUnavailableError as reason:
        pytest.skip(str(reason))
    if os.environ.get("TIDEGATE_RECORD") == "1":
        record("starts", recorded("starts") | {name: answers})
    known = recorded("starts")[name]
    assert {case: as_we_say(answer) for case, answer in answers.items()} == {
        case: as_we_say(answer) for case, answer in known.items()
    }


def test_every_difference_is_about_a_case() -> None:
    for name, differences in DIFFERENCES.items():
        cases = {f"http: {case}" for case in STARTS[name].http} | {f"grpc: {case}" for case in STARTS[name].grpc}
        assert differences.keys() <= cases
