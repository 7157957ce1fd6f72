"""The response cache: what it keeps, what it lets go, and that a hit is the model's own answer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.request import InferenceRequest, RequestedOutput
from backends.api.tensor import Tensor
from scheduler.redis_cache import RedisCache
from scheduler.response_cache import LocalCache, key_of
from tests.unit.scheduler.tensor_fakes import Gate, answer, ask, config, serving


class FakeRedis:
    """A dictionary that can be out of reach."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.is_away = False

    def get(self, name: bytes) -> bytes | None:
        self._reach()
        return self.values.get(name)

    def set(self, name: bytes, value: bytes) -> None:
        self._reach()
        self.values[name] = value

    def _reach(self) -> None:
        if self.is_away:
            raise ConnectionError("away")


def tensor(size: int, value: float = 0.0) -> Tensor:
    return Tensor("OUT", "FP32", (size,), np.full(size, value, np.float32))


@pytest.mark.parametrize("make", [lambda: LocalCache(1 << 20), lambda: RedisCache(FakeRedis())])
async def test_the_second_equal_question_is_answered_without_the_model(make):
    gate = Gate()
    gate.open(10)
    async with serving(gate, replace(config(), response_cache=True), cache=make()) as model:
        for name in ("a", "b"):
            request = ask(1, id=name)
            model.infer(request)
            response = request.stream.get(20)
            assert (response.id, response.outputs[0].as_numpy().tolist()) == (name, [[1]])
        other = ask(2)
        model.infer(other)
        assert answer(other) == [2]
        assert gate.batches == [[1], [2]]
        counts = model.statistics.snapshot()
        assert (counts.cache_hit.count, counts.cache_miss.count) == (1, 2)
        assert (counts.success.count, counts.inference_count, counts.execution_count) == (3, 2, 2)


async def test_a_large_question_is_looked_up_aside_and_answered_all_the_same():
    gate = Gate()
    gate.open(10)
    settings = replace(config(max_batch_size=0, batching=None, dims=(-1, 1)), response_cache=True)
    async with serving(gate, settings, cache=LocalCache(1 << 20)) as model:
        for _ in range(2):
            request = ask(*range(30_000))
            model.infer(request)
            assert len(answer(request)) == 30_000
        assert len(gate.batches) == 1


async def test_a_cache_out_of_reach_is_a_miss():
    redis = FakeRedis()
    redis.is_away = True
    async with serving(model_config=replace(config(), response_cache=True), cache=RedisCache(redis)) as model:
        request = ask(1)
        model.infer(request)
        assert answer(request) == [1]


async def test_without_response_cache_in_the_config_nothing_is_kept():
    cache = LocalCache(1 << 20)
    async with serving(cache=cache) as model:
        request = ask(1)
        model.infer(request)
        answer(request)
    assert cache.counts().num_lookups == 0


def test_the_least_recently_used_answer_goes_first():
    cache = LocalCache(3 * (512 + 400))
    for key in (b"a", b"b", b"c"):
        cache.put(key, [tensor(100)])
    assert cache.get(b"a") is not None
    cache.put(b"d", [tensor(100)])
    assert [cache.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert cache.counts().num_evictions == 1


def test_an_answer_larger_than_the_cache_is_not_kept():
    cache = LocalCache(1000)
    cache.put(b"a", [tensor(100)])
    cache.put(b"b", [tensor(1000)])
    assert cache.get(b"a") is not None
    assert cache.get(b"b") is None


def test_what_is_kept_is_a_copy_that_cannot_be_written_to():
    cache, given_tensor = LocalCache(10_000), tensor(4)
    cache.put(b"a", [given_tensor])
    given_tensor.data[:] = 9
    (kept,) = cache.get(b"a") or []
    assert kept.as_numpy().tolist() == [0] * 4
    assert not kept.as_numpy().flags.writeable


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 300)), max_size=40))
def test_the_cache_never_holds_more_bytes_than_it_may(puts):
    cache = LocalCache(3000)
    for key, size in puts:
        cache.put(key.encode(), [tensor(size, size)])
        kept = cache.get(key.encode())
        assert kept is None or kept[0].as_numpy().tolist() == [size] * size
        counts = cache.counts()
        assert counts.num_bytes <= 3000
        assert counts.num_bytes == sum(size for _, size in cache._entries.values())


def request(*tensors: Tensor, outputs=(), **fields) -> InferenceRequest:
    return InferenceRequest("m", "", list(tensors), [RequestedOutput(name) for name in outputs], **fields)


def test_a_key_tells_apart_what_may_have_another_answer_and_nothing_else():
    def strings(*items: bytes) -> Tensor:
        return Tensor("IN", "BYTES", (len(items),), list(items))

    one = Tensor("IN", "FP32", (2,), np.zeros(2, np.float32))
    other_shape = Tensor("IN", "FP32", (1, 2), np.zeros((1, 2), np.float32))
    other_type = Tensor("IN", "INT32", (2,), np.zeros(2, np.int32))
    questions = [
        request(one),
        request(other_shape),
        request(other_type),
        request(one, outputs=["A"]),
        request(one, outputs=["A", "B"]),
        request(one, outputs=["A', 'B"]),
        request(strings(b"ab", b"c")),
        request(strings(b"a", b"bc")),
        request(strings(b"abc")),
    ]
    keys = [key_of("m", "1", question) for question in questions]
    assert len(set(keys)) == len(keys)
    assert key_of("m", "2", questions[0]) != keys[0]
    assert key_of("m", "1", request(one, id="x", parameters={"p": 1})) == keys[0]
    pair = Tensor("B", "FP32", (1,), np.ones(1, np.float32))
    assert key_of("m", "1", request(one, pair)) == key_of("m", "1", request(pair, one))
