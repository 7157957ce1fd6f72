"""Closed and open loops over connections, whatever they speak."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.chat_load import arrivals, percentile

PERCENTILES = (50, 90, 99)


class Connection(Protocol):
    """A client's end of a connection that has one request under way at a time."""

    async def call(self) -> str:
        """Send the ready-made request and wait for its answer; "" for a good one, else what was wrong."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Sample:
    """What one run saw: seconds of each good answer, and what was wrong with the others."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, float]:
        """Answers a second and milliseconds."""
        return {
            "requests": len(self.latencies) + len(self.errors),
            "requests_per_s": len(self.latencies) / self.seconds,
            **{f"p{percent}_ms": percentile(self.latencies, percent) * 1000 for percent in PERCENTILES},
            "max_ms": max(self.latencies, default=0.0) * 1000,
            "errors": len(self.errors),
        }

    def add(self, error: str, latency: float) -> None:
        if error:
            self.errors.append(error)
        else:
            self.latencies.append(latency)


async def closed_loop(connections: Sequence[Connection], seconds: float) -> Sample:
    """Each connection asks again as soon as it is answered."""
    sample = Sample()
    start = time.perf_counter()
    end = start + seconds

    async def client(connection: Connection) -> None:
        now = time.perf_counter()
        while now < end:
            sent = now
            error = await connection.call()
            now = time.perf_counter()
            sample.add(error, now - sent)

    await asyncio.gather(*(client(connection) for connection in connections))
    sample.seconds = time.perf_counter() - start
    return sample


async def open_loop(connections: Sequence[Connection], rate: float, seconds: float, seed: int) -> Sample:
    """`rate` requests a second at random times, whether or not the earlier ones are answered.

    A request's latency starts at its time, so waiting for a free connection is in it.
    """
    sample = Sample()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    start = time.perf_counter()

    async def one(due: float) -> None:
        await asyncio.sleep(due - time.perf_counter())
        connection = await free.get()
        error = await connection.call()
        sample.add(error, time.perf_counter() - due)
        free.put_nowait(connection)

    await asyncio.gather(*(one(start + after) for after in arrivals(rate, max(1, round(rate * seconds)), seed)))
    sample.seconds = time.perf_counter() - start
    return sample
