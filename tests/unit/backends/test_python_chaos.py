"""Custom models that are broken at random, under load: the short form of `bench/chaos.py`."""

import asyncio
import sys

import pytest


@pytest.mark.slow
async def test_every_request_ends_right_and_nothing_is_left_behind() -> None:
    """In a process of its own: it looks for processes, descriptors and memory that were left."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.chaos", "--seconds", "4", "--clients", "32", "--seed", "1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
