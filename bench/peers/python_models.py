"""Custom Python models beside a real Triton 2.51: the same model files on both servers, in turns.

    python -m bench.peers.python_models [--only add_sub chain] [--runs 3]

Units a second and the processor time of one, of the server with all its processes. A unit is a request, or a response where
requests have many. Triton runs an `async def execute` one after the other: its row of `wait` is what that comes to.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop
from tritonclient.grpc import service_pb2 as pb

from bench.infer import measure_once
from bench.infer_load import Connection, closed_loop
from bench.infer_process import Meter
from bench.infer_requests import Target
from bench.peers.servers import PeerUnavailableError, tidegate
from tests.oracle.triton_server import TritonUnavailableError, triton_server

MODELS = Path(__file__).parent / "models"
_SERVICE = "/inference.GRPCInferenceService/"
_RESPONSES = 32  # of a decoupled request


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` ask `model` over `protocol`: one of `bench.infer`'s, "decoupled" or "sequence"."""

    model: str
    protocol: str
    clients: int

    @property
    def units(self) -> int:
        """Units that one call of a client brings."""
        return _RESPONSES if self.protocol == "decoupled" else 1


LOADS = [
    *(Load("add_sub", protocol, clients) for protocol in ("http-json", "http-binary", "grpc") for clients in (1, 16)),
    *(Load("add_sub_batched", protocol, 16) for protocol in ("http-json", "http-binary", "grpc")),
    *(Load("repeat", "decoupled", clients) for clients in (1, 4)),
    *(Load("accumulate", "sequence", clients) for clients in (1, 16)),
    *(Load("chain", protocol, clients) for protocol in ("http-binary", "grpc") for clients in (1, 16)),
    *(Load("call_add_sub", "http-binary", clients) for clients in (1, 16)),
    Load("wait", "http-binary", 200),
]


class Decoupled:
    """A stream whose every request is answered `_RESPONSES` times."""

    def __init__(self, channel: Any, model: str) -> None:
        self._call = channel.stream_stream(f"{_SERVICE}ModelStreamInfer")()
        self._request = _message(model, _RESPONSES).SerializeToString()

    async def call(self) -> str:
        await self._call.write(self._request)
        for _ in range(_RESPONSES):
            answer = await self._call.read()
            if answer is grpc.aio.EOF or answer[:1] == b"\x0a":  # the tag of error_message
                return "the stream ended" if answer is grpc.aio.EOF else "an error message"
        return ""

    async def close(self) -> None:
        self._call.cancel()


class SequenceClient:
    """A client whose requests are one sequence."""

    def __init__(self, channel: Any, model: str, number: int) -> None:
        self._infer = channel.unary_unary(f"{_SERVICE}ModelInfer")
        message = _message(model, 1)
        message.inputs[0].shape[:] = [1, 1]
        message.parameters["sequence_id"].int64_param = number
        self._next = message.SerializeToString()
        message.parameters["sequence_start"].bool_param = True
        self._request = message.SerializeToString()

    async def call(self) -> str:
        request, self._request = self._request, self._next
        try:
            await self._infer(request)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    async def close(self) -> None:
        """The channel is shared."""


def _message(model: str, value: int) -> Any:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="IN", datatype="INT32", shape=[1])
    message.raw_input_contents.append(value.to_bytes(4, "little"))
    return message


async def run_once(load: Load, target: Target, seconds: float, number: int) -> dict[str, float]:
    """One run; `number` tells runs apart. Rates are of units."""
    if load.protocol not in ("decoupled", "sequence"):
        return await measure_once(target, load.protocol, load.clients, seconds, wrk=load.clients < 100)
    async with AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(target.grpc, options=options) for _ in range(min(4, load.clients))]
        for channel in channels:
            stack.push_async_callback(channel.close)
        connections: list[Connection] = []
        for index in range(load.clients):
            channel = channels[index % len(channels)]
            connection: Connection = (
                Decoupled(channel, load.model)
                if load.protocol == "decoupled"
                else SequenceClient(channel, load.model, 1 + number * 1000 + index)
            )
            stack.push_async_callback(connection.close)
            connections.append(connection)
        await asyncio.gather(*(connection.call() for connection in connections))
        meter = Meter(target.grpc)
        meter.start()
        sample = await closed_loop(connections, seconds)
        used = meter.stop()
    numbers = sample.numbers()
    numbers["requests_per_s"] *= load.units
    if numbers["requests_per_s"]:
        used["server_us"] = used["server_cores"] / numbers["requests_per_s"] * 1e6
    return {**numbers, **used}


def measure(loads: Sequence[Load], servers: dict[str, tuple[str, str]], options: argparse.Namespace) -> list[Any]:
    rows = []
    print(
        f"{'model':16} {'protocol':12} {'clients':>7} {'server':10} {'units/s':>8} {'CPU µs':>7} {'p50 ms':>7} {'other':>5}"
    )
    for load in loads:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for number in range(options.runs + 1):  # the first warms up and does not count
            for name, (http, grpc_address) in servers.items():
                target = Target(name, load.model, http, grpc_address)
                seconds = options.seconds if number else 0.5
                numbers = uvloop.run(run_once(load, target, seconds, number))
                if number:
                    runs[name].append(numbers)
        for name, all_numbers in runs.items():
            row = {"load": f"{load.model} {load.protocol} {load.clients}", "server": name, "runs": all_numbers}
            rows.append(row)
            rate, cost, latency, other = (
                statistics.median(numbers.get(key, 0.0) for numbers in all_numbers)
                for key in ("requests_per_s", "server_us", "p50_ms", "other_cores")
            )
            failed = sum(numbers["errors"] for numbers in all_numbers)
            line = f"{load.model:16} {load.protocol:12} {load.clients:7} {name:10} {rate:8.0f} {cost:7.0f} {latency:7.2f} {other:5.2f}"
            print(line + (f"  {failed:.0f} FAILED" if failed else ""), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.python_models", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="loads on these models")
    parser.add_argument("--protocols", nargs="+", help="loads over these protocols")
    parser.add_argument("--clients", nargs="+", type=int, help="loads of so many clients")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--before", type=Path, help="another checkout of Tidegate")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args(argv)
    loads = [
        load
        for load in LOADS
        if load.model in (options.only or [load.model])
        and load.protocol in (options.protocols or [load.protocol])
        and load.clients in (options.clients or [load.clients])
    ]
    try:
        with ExitStack() as stack:
            rows = measure(loads, _start(options, stack), options)
    except (OSError, PeerUnavailableError, TritonUnavailableError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if any(numbers["errors"] for row in rows for numbers in row["runs"]) else 0


def _start(options: argparse.Namespace, stack: ExitStack) -> dict[str, tuple[str, str]]:
    def folder() -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))

    servers: dict[str, tuple[str, str]] = {}
    if not options.no_triton:
        http, grpc_address, _ = stack.enter_context(triton_server(folder(), MODELS, allow_metrics="false"))
        servers["triton"] = http, grpc_address
    if options.before:
        servers["before"] = stack.enter_context(tidegate(folder(), options.before, MODELS))
    servers["tidegate"] = stack.enter_context(tidegate(folder(), Path(__file__).parents[2], MODELS))
    return servers


if __name__ == "__main__":
    sys.exit(main())
