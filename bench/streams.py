"""Many slow streams on one core: the gaps that their clients see, and what a chunk costs the API process.

    python -m bench.streams [--streams 1000] [--gap 0.1] [--seconds 10]

The server (`bench.streams_server`) has one core, and the engine's child and this client the other. The engine is real,
its model a metronome. A bare ASGI function that sends as many bytes at the same pace is measured in the same run.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
import uvloop

from bench.chat_load import percentile
from bench.streams_server import CLIENT_CORE, MODEL, SERVER_CORE

_WARM_UP_S = 2.0


class Stream(asyncio.Protocol):
    """Asks, and notes when chunks come; a gap is between two reads that brought some."""

    def __init__(self, request: bytes, window: "Window") -> None:
        self._request = request
        self._window = window
        self._last = 0.0

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        count = data.count(b"data: {")
        if count:
            now = time.perf_counter()
            self._window.note(count, now, now - self._last if self._last else None)
            self._last = now

    def connection_lost(self, exc: Exception | None) -> None:
        self._window.num_lost += 1


class Window:
    """What came while it was open."""

    def __init__(self) -> None:
        self.num_chunks = 0
        self.num_lost = 0
        self.gaps: list[float] = []
        self.is_open = False

    def note(self, count: int, now: float, gap: float | None) -> None:
        if self.is_open:
            self.num_chunks += count
            if gap is not None:
                self.gaps.append(gap)


async def measure(port: int, server: psutil.Process, path: str, options: argparse.Namespace) -> dict[str, float]:
    num_tokens = round((options.seconds + 2 * _WARM_UP_S) / options.gap)  # the bare server goes on to the end
    window = Window()
    loop = asyncio.get_running_loop()
    request = _request(path, num_tokens)
    transports = []
    for _ in range(options.streams):
        transport, _ = await loop.create_connection(lambda: Stream(request, window), "127.0.0.1", port)
        transports.append(transport)
    await asyncio.sleep(_WARM_UP_S)
    used, busy, start = server.cpu_times(), _busy(), time.perf_counter()
    window.is_open = True
    await asyncio.sleep(options.seconds)
    window.is_open = False
    now, busy, wall = server.cpu_times(), _busy() - busy, time.perf_counter() - start
    user, system = now.user - used.user, now.system - used.system
    num_lost = window.num_lost
    for transport in transports:
        transport.abort()
    await asyncio.sleep(2 * _WARM_UP_S)
    return {
        "chunks_per_s": window.num_chunks / wall,
        "lost": num_lost,
        **{f"gap_p{percent}_ms": percentile(window.gaps, percent) * 1000 for percent in (50, 99)},
        "gap_max_ms": max(window.gaps, default=0.0) * 1000,
        "server_us": (user + system) / max(1, window.num_chunks) * 1e6,
        "of_which_system": system / max(1, window.num_chunks) * 1e6,
        "server_cores": (user + system) / wall,
        "all_cores": busy / wall,
    }


def _request(path: str, num_tokens: int) -> bytes:
    if path == "/raw":
        return f"GET /raw?{num_tokens} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": num_tokens, "ignore_eos": True}
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    return f"{head}\r\n\r\n".encode() + content


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between two tokens of a stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args(argv)
    os.sched_setaffinity(0, {CLIENT_CORE})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "bench.streams_server", str(port), str(options.streams), str(options.gap)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            print("the server did not start", file=sys.stderr)
            return 1
        print(f"{options.streams} streams, a token each {options.gap:g} s, server on core {SERVER_CORE}")
        for _ in range(options.runs):
            for path in ("/raw", "/v1/chat/completions"):
                numbers = uvloop.run(measure(port, psutil.Process(server.pid), path, options))
                print(f"{path:22}", *(f"{name} {value:.1f}" for name, value in numbers.items()), sep="  ", flush=True)
    finally:
        server.communicate(timeout=30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
