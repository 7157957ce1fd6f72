"""The load generator of `bench/infer.py` against our own server: what it counts is what was answered."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bench import infer
from bench.infer import arguments, measure, measure_once, table
from bench.infer_requests import PROTOCOLS, Target
from tests.fakes.kserve import grpc_server, http_server, service


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    kserve = service()
    with http_server(kserve) as http, grpc_server(kserve) as grpc:
        yield http, grpc


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_protocol_is_answered(protocol: str, addresses: tuple[str, str]) -> None:
    numbers = await measure_once(Target("ours", "ident", *addresses), protocol, clients=3, seconds=0.1)
    assert numbers["errors"] == 0
    assert numbers["requests_per_s"] > 0
    assert 0 < numbers["p50_ms"] <= numbers["p99_ms"] <= numbers["max_ms"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_refusals_are_counted_as_errors_and_not_as_answers(protocol: str, addresses: tuple[str, str]) -> None:
    numbers = await measure_once(Target("ours", "failing", *addresses), protocol, clients=1, seconds=0.05)
    assert numbers["errors"] > 0
    assert numbers["requests_per_s"] == 0


async def test_an_open_loop_sends_as_many_requests_as_its_rate_says(addresses: tuple[str, str]) -> None:
    options = arguments(
        ["--model", "ident", "--rate", "400", "--seconds", "0.1", "--runs", "1", "--no-progress", "--clients", "2"]
    )
    report = await measure([Target("ours", "ident", *addresses)], options)
    assert len(report["points"]) == len(PROTOCOLS)
    assert all(run["requests"] == 40 and run["errors"] == 0 for point in report["points"] for run in point["runs"])
    assert "ours" in table(report)


async def test_a_server_that_goes_down_is_measured_no_further_and_the_rest_is_told(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(target: Target, point: Mapping[str, Any], *more: object) -> dict[str, float]:
        if (target.name, point["clients"]) == ("theirs", 16):
            raise ConnectionRefusedError("nobody listens")
        return {"requests_per_s": 1.0, "requests": 1, "errors": 0}

    monkeypatch.setattr(infer, "_run", run)
    options = arguments(["--model", "ident", "--runs", "2", "--no-progress", "--protocols", "http-json"])
    report = await measure([Target(name, "ident", *addresses) for name in ("theirs", "ours")], options)
    measured = [(point["target"], point["clients"], len(point["runs"])) for point in report["points"]]
    assert measured == [("theirs", 1, 2), ("ours", 1, 2), ("ours", 16, 2)]
    assert "theirs" in table(report)
