"""Our answers beside those of a real Triton 2.51, as recorded; and, where one can be started, the recordings beside it.

Differences are named in `differences.py`, one by one, and told to users in docs/triton_differences.md.
TIDEGATE_RECORD=1 writes new recordings instead of comparing.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.fakes.kserve import grpc_server, http_server, service
from tests.oracle import grpc_cases, http_cases
from tests.oracle.differences import GRPC, HTTP, Difference, as_we_say
from tests.oracle.triton_server import TritonUnavailableError, triton_server

FOLDER = Path(__file__).parent / "recorded"
DOCUMENT = Path(__file__).parents[2] / "docs" / "triton_differences.md"


def recorded(kind: str) -> dict[str, Any]:
    path = FOLDER / f"{kind}.json"
    answers: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return answers


@pytest.fixture(scope="module")
def our_http() -> Iterator[httpx.Client]:
    with http_server(service()) as where, httpx.Client(base_url=f"http://{where}", timeout=20) as http:
        yield http


@pytest.fixture(scope="module")
def our_grpc() -> Iterator[grpc.Channel]:
    with grpc_server(service()) as where, grpc.insecure_channel(where) as channel:
        yield channel


def check(ours: Any, tritons: Any, difference: Difference | None) -> None:
    if difference is None:
        assert as_we_say(ours) == as_we_say(tritons)
        return
    assert ours != tritons, "this is no difference any more: take it out of the list"
    assert difference.ours in json.dumps(ours, ensure_ascii=False)
    assert difference.row in DOCUMENT.read_text(), "tell users: a row in docs/triton_differences.md"


@pytest.mark.parametrize("case", http_cases.CASES)
def test_our_http_answer_is_tritons(our_http: httpx.Client, case: str) -> None:
    check(http_cases.send(our_http, http_cases.CASES[case]), recorded("http")[case], HTTP.get(case))


@pytest.mark.parametrize("case", grpc_cases.CASES)
def test_our_grpc_answer_is_tritons(our_grpc: grpc.Channel, case: str) -> None:
    check(grpc_cases.send(our_grpc, grpc_cases.CASES[case]), recorded("grpc")[case], GRPC.get(case))


def test_every_difference_is_about_a_case() -> None:
    assert HTTP.keys() <= http_cases.CASES.keys()
    assert GRPC.keys() <= grpc_cases.CASES.keys()


@pytest.mark.oracle
@pytest.mark.slow
def test_the_recordings_are_what_triton_answers(tmp_path: Path) -> None:
    try:
        with triton_server(tmp_path) as (http_address, grpc_address, _):
            with httpx.Client(base_url=f"http://{http_address}", timeout=20) as http:
                from_http = {name: http_cases.send(http, case) for name, case in http_cases.CASES.items()}
            with grpc.insecure_channel(grpc_address) as channel:
                from_grpc = {name: grpc_cases.send(channel, case) for name, case in grpc_cases.CASES.items()}
    except TritonUnavailableError as reason:
        pytest.skip(str(reason))
    for kind, answers in (("http", from_http), ("grpc", from_grpc)):
        if os.environ.get("TIDEGATE_RECORD") == "1":
            (FOLDER / f"{kind}.json").write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
        assert answers == recorded(kind)
