"""The custom models among the examples give the same answers on a real Triton 2.51 and on Tidegate."""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.e2e.server_process import START, ServerProcess, eventually
from tests.oracle.triton_server import Addresses, TritonUnavailableError, triton_server

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = EXAMPLES / "python_models"
RATE_LIMIT = "execution_count"
pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def _client_module() -> Any:
    spec = importlib.util.spec_from_file_location("python_models_client", EXAMPLES / "clients" / "python_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLE = _client_module()


@dataclass(frozen=True)
class Server:
    addresses: Addresses
    client: Any


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Triton and ours, started anew: what models have counted so far is the same."""
    process = ServerProcess(MODELS, "--rate-limit", RATE_LIMIT)
    try:
        with triton_server(tmp_path_factory.mktemp("triton"), MODELS, rate_limit=RATE_LIMIT) as triton:
            assert eventually(lambda: process.said("ready: "), START)
            ours = Addresses(*map(process.address, ("HTTPService", "GRPCInferenceService", "Metrics Service")))
            clients = [http.InferenceServerClient(addresses.http) for addresses in (triton, ours)]
            yield Server(triton, clients[0]), Server(ours, clients[1])
            for client in clients:
                client.close()
    except TritonUnavailableError as reason:
        pytest.skip(str(reason))
    finally:
        process.stop()


def _failure(act: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        act()
    return caught.value.status(), caught.value.message()


def _wrong_shape(server: Server) -> tuple[str, str]:
    inputs = [EXAMPLE.tensor(name, np.zeros((1, size), np.float32)) for name, size in (("INPUT0", 4), ("INPUT1", 3))]
    return _failure(lambda: server.client.infer("add_sub", inputs))


def _measures(server: Server) -> Any:
    totals = [EXAMPLE.measure(server.client, value) for value in (0.75, 2.0, 20.0)]
    families = text_string_to_metric_families(httpx.get(f"http://{server.addresses.metrics}/metrics").text)
    mine = [family for family in families if family.name.startswith("measures_")]
    samples = {(s.name, frozenset(s.labels.items()), s.value) for family in mine for s in family.samples}
    return totals, {(family.name, family.type, family.documentation) for family in mine}, samples


def _turns(server: Server) -> bool:
    turns = EXAMPLE.turns(server.addresses.http, 4, 20)
    return all(end <= start for (_, end), (start, _) in pairwise(turns))


ASK: dict[str, Callable[[Server], Any]] = {
    "add_sub": lambda server: EXAMPLE.add(server.client, 2.5, 3.25),
    "add_sub, a wrong shape": _wrong_shape,
    "bls": lambda server: EXAMPLE.add_by_name(server.client, "add_sub", 2.5, 3.25),
    "bls, decoupled": lambda server: EXAMPLE.sums_of_squares(server.addresses.grpc, 50),
    "bls, decoupled, nothing comes": lambda server: EXAMPLE.sums_of_squares(server.addresses.grpc, 0),
    "bls, async": lambda server: EXAMPLE.sum_of_squares(server.client, 6),
    "auto_complete": lambda server: EXAMPLE.upper(server.client, "grüße"),
    "auto_complete, metadata": lambda server: server.client.get_model_metadata("self_describing"),
    "decoupled, repeat": lambda server: EXAMPLE.repeated(server.addresses.grpc, list(range(60))),
    "decoupled, square": lambda server: EXAMPLE.squares(server.addresses.grpc, 60),
    "decoupled, nothing comes": lambda server: EXAMPLE.squares(server.addresses.grpc, 0),
    "custom metrics": _measures,
    "instance kind": lambda server: EXAMPLE.where(server.client),
    "preprocessing": lambda server: EXAMPLE.pixels(server.client, b"P6 2 2 255\n" + bytes(range(12))),
    "preprocessing, no image": lambda server: _failure(lambda: EXAMPLE.pixels(server.client, b"GIF89a")),
    "rate limiter": _turns,
    "iterative": lambda server: EXAMPLE.count_down(server.addresses.grpc, 20),
}


@pytest.mark.parametrize("kind", ASK)
def test_a_kind_of_model_answers_as_on_triton(servers: tuple[Server, Server], kind: str) -> None:
    triton, ours = servers
    assert ASK[kind](ours) == ASK[kind](triton)


def test_models_that_share_a_resource_take_turns(servers: tuple[Server, Server]) -> None:
    _, ours = servers
    assert _turns(ours)


def test_a_failed_call_to_another_model_is_told_by_both(servers: tuple[Server, Server]) -> None:
    """Triton says 500 to all, we say what the called model said: docs/triton_differences.md."""
    triton, ours = servers
    for model, status, text in (
        ("nobody", "404", "'nobody' is not"),
        ("where", "400", "'where'"),
        ("square_stream", "400", "Please use 'decoupled=True'"),
    ):
        told = [_failure(lambda: EXAMPLE.add_by_name(server.client, model, 1.0, 2.0)) for server in (triton, ours)]  # noqa: B023
        assert [each[0] for each in told] == ["500", status]
        assert all(text in message for _, message in told)
