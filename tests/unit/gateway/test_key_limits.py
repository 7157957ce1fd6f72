"""Limits of a key over time, with a clock that tests move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from gateway.key_limits import Bucket, KeyLimits
from gateway.keys import Key, digest_of


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def key(**limits: int) -> Key:
    return Key(name="a", digest=digest_of("a"), **limits)  # type: ignore[arg-type]


def refused(limits: KeyLimits, who: Key) -> ServingError:
    with pytest.raises(ServingError) as caught:
        limits.enter(who)
    assert (caught.value.code, caught.value.reason) == (Code.OVERLOADED, "rate_limit_exceeded")
    return caught.value


def test_a_key_has_no_more_requests_open_than_its_limit() -> None:
    limits, who = KeyLimits(Clock()), key(max_concurrent_requests=2)
    limits.enter(who)
    limits.enter(who)
    assert refused(limits, who).retry_after == 1.0
    limits.leave(who)
    limits.enter(who)
    assert limits.num_open(who) == 2


def test_a_refused_request_is_neither_open_nor_counted() -> None:
    clock = Clock()
    limits, who = KeyLimits(clock), key(requests_per_minute=1)
    limits.enter(who)
    for _ in range(5):
        assert refused(limits, who).retry_after == pytest.approx(60.0)
    assert limits.num_open(who) == 1
    clock.now += 60.0
    limits.enter(who)


def test_tokens_are_charged_at_the_end_and_must_be_paid_back_before_the_next() -> None:
    clock = Clock()
    limits, who = KeyLimits(clock), key(tokens_per_minute=60)
    limits.enter(who)
    limits.spend(who, 89)
    assert refused(limits, who).retry_after == pytest.approx(30.0)
    clock.now += 30.1
    limits.enter(who)


def test_a_key_without_limits_is_never_refused() -> None:
    limits, who = KeyLimits(Clock()), key()
    for _ in range(1000):
        limits.enter(who)
    limits.spend(who, 10**9)
    limits.enter(who)


@given(amount=st.integers(1, 600), steps=st.lists(st.floats(0, 30), max_size=200))
def test_no_minute_sees_more_than_twice_the_allowance(amount: int, steps: list[float]) -> None:
    """A full bucket and a minute's refill: what any window of a minute can hold at most."""
    now, bucket, taken = 0.0, Bucket(amount, 0.0), []
    for step in steps:
        now += step
        while bucket.wait(now) == 0.0:
            bucket.charge(1, now)
            taken.append(now)
    for start in taken:
        assert sum(start <= moment < start + 60 for moment in taken) <= 2 * amount


@given(amount=st.integers(1, 600), spent=st.integers(1, 5000))
def test_the_wait_it_tells_is_the_wait_there_is(amount: int, spent: int) -> None:
    bucket = Bucket(amount, 0.0)
    bucket.charge(spent, 0.0)
    wait = bucket.wait(0.0)
    assert wait == 0.0 or bucket.wait(wait * 0.99) > 0
    assert bucket.wait(wait * 1.001) < 1e-6
