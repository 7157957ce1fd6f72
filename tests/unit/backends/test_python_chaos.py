"""Custom models that are broken at random, under load: the short form of `bench/chaos.py`."""

import pytest

from bench.chaos import run


@pytest.mark.slow
async def test_every_request_ends_right_and_nothing_is_left_behind() -> None:
    report, faults = await run(seconds=4.0, num_clients=32, seed=1)
    assert not faults, (faults, report)
