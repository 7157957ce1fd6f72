"""The response cache in Redis, by the real client library against a small server."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from backends.api.tensor import NUMPY_DTYPES, Tensor
from scheduler.redis_cache import RedisCache, connect
from tests.fakes.resp_server import RespServer, resp_server
from tests.unit.scheduler.tensor_fakes import Gate, answer, ask, config, serving

pytest.importorskip("redis")


@pytest.fixture
def server() -> Iterator[RespServer]:
    with resp_server() as running:
        yield running


@pytest.fixture
def cache(server: RespServer) -> Iterator[RedisCache]:
    connected = connect("127.0.0.1", server.port, None, None)
    yield connected
    connected.close()


def test_what_was_put_comes_back_whatever_its_type(cache: RedisCache) -> None:
    outputs = [
        Tensor(name, name, (2, 3), np.arange(6).reshape(2, 3).astype(dtype)) for name, dtype in NUMPY_DTYPES.items()
    ]
    outputs += [
        Tensor("texts", "BYTES", (2,), [b"", b"\xff\x00"]),
        Tensor("none", "FP32", (0, 4), np.empty((0, 4), "f")),
    ]
    assert cache.get(b"key") is None
    cache.put(b"key", outputs)
    for kept, given in zip(cache.get(b"key") or [], outputs, strict=True):
        assert (kept.name, kept.datatype, kept.shape) == (given.name, given.datatype, given.shape)
        assert np.array_equal(kept.as_numpy(), given.as_numpy())


def test_another_gateway_finds_the_same(server: RespServer, cache: RedisCache) -> None:
    cache.put(b"key", [Tensor("x", "INT32", (1,), np.array([7], np.int32))])
    other = connect("127.0.0.1", server.port, None, None)
    (kept,) = other.get(b"key") or []
    other.close()
    assert kept.as_numpy().tolist() == [7]


def test_a_value_that_somebody_else_wrote_is_a_miss(server: RespServer, cache: RedisCache) -> None:
    cache.put(b"key", [])
    (name,) = server.values
    server.values[name] = b"\xc1 not ours"
    assert cache.get(b"key") is None


def test_a_password_is_given_and_a_wrong_one_costs_only_the_cache() -> None:
    with resp_server("secret") as server:
        for password, found in (("secret", True), ("wrong", False)):
            cache = connect("127.0.0.1", server.port, "user", password)
            cache.put(b"key", [])
            assert (cache.get(b"key") is not None) is found
            cache.close()


async def test_equal_requests_run_once_and_a_server_that_goes_away_is_only_missed() -> None:
    gate = Gate()
    gate.open(10)
    with resp_server() as server:
        cache = connect("127.0.0.1", server.port, None, None)
        async with serving(gate, replace(config(), response_cache=True), cache=cache) as model:
            for _ in range(3):
                model.infer(request := ask(4))
                assert answer(request) == [4]
            assert len(gate.batches) == 1
            assert model.statistics.snapshot().cache_hit.count == 2
            server.shutdown()
            server.server_close()
            cache.close()
            model.infer(request := ask(4))
            assert answer(request) == [4]
            assert len(gate.batches) == 2
