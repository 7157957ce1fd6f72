"""The rate limiter: resources are never overdrawn, and the one that ran least goes first."""

import asyncio
import threading
from dataclasses import replace

import pytest

from backends.api.base import Placement
from backends.api.errors import ServingError
from backends.api.model_config import InstanceGroup, RateLimiterResource
from scheduler.rate_limit import RateLimiter
from tests.unit.scheduler.tensor_fakes import Gate, answer, ask, config, serving


def group(count: int, *, priority: int = 0, is_global: bool = False, name: str = "R") -> InstanceGroup:
    return InstanceGroup(
        kind="KIND_CPU", resources=(RateLimiterResource(name, count, is_global),), resource_priority=priority
    )


def test_an_instance_that_could_never_run_is_refused():
    limiter = RateLimiter({("R", -1): 2})
    with pytest.raises(ServingError, match='Resource count for "R" is limited to 2 which will prevent scheduling'):
        limiter.claim(group(3), Placement("a"))


def test_a_device_has_resources_of_its_own_and_a_global_one_is_shared():
    limiter = RateLimiter()
    first, second = (limiter.claim(group(1), Placement("a", "GPU", device)) for device in (0, 1))
    with first, second:
        pass
    shared = [limiter.claim(group(1, is_global=True, name="G"), Placement("a", "GPU", device)) for device in (0, 1)]
    with shared[0]:
        assert not limiter._may_go(shared[1])


def test_resources_are_never_overdrawn():
    limiter = RateLimiter({("R", -1): 3})
    claims = [limiter.claim(group(need), Placement(str(need))) for need in (1, 2, 3, 1)]
    used, most, lock = 0, 0, threading.Lock()

    def run(claim):
        nonlocal used, most
        need = claim.needs[("R", 0)]
        for _ in range(50):
            with claim:
                with lock:
                    used += need
                    most = max(most, used)
                with lock:
                    used -= need

    threads = [threading.Thread(target=run, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 3
    assert [claim.num_executions for claim in claims] == [50] * 4
    assert set(limiter._used.values()) == {0}


def test_of_two_that_wait_the_one_with_the_lower_scaled_count_may_go():
    limiter = RateLimiter()
    often, seldom = limiter.claim(group(1), Placement("a")), limiter.claim(group(1, priority=10), Placement("b"))
    often.num_executions, seldom.num_executions = 5, 1
    limiter._waiting += [often, seldom]
    assert limiter._may_go(often)
    assert not limiter._may_go(seldom)


async def test_two_models_that_need_the_same_resource_take_turns():
    limiter, gate = RateLimiter(), Gate()
    settings = replace(config(), instance_groups=(group(1),))
    async with serving(gate, settings, limiter=limiter) as one, serving(gate, settings, limiter=limiter) as two:
        first, second = ask(1), ask(2)
        one.infer(first)
        gate.wait_entered()
        two.infer(second)
        with pytest.raises(TimeoutError):
            second.stream.get(0.01)
        assert gate.batches == [[1]]
        gate.open(2)
        assert (answer(first), answer(second)) == ([1], [2])
        await asyncio.sleep(0)
    assert limiter._claims == []
