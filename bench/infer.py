"""Load on any KServe v2 server: answers a second and latency over HTTP JSON, HTTP binary, gRPC and gRPC streams.

    python -m bench.infer --model identity --clients 1 16 64
    python -m bench.infer --model identity --server ours=127.0.0.1:8000,127.0.0.1:8001 --server theirs=127.0.0.1:9000,127.0.0.1:9001

A closed loop keeps `--clients` requests under way; `--rate` opens it. Several servers are measured in turns, run by run,
so that their ratios hold on a machine whose speed drifts.
"""

import argparse
import asyncio
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from bench.chat_load import over_runs
from bench.infer_grpc import Channels
from bench.infer_http import HttpConnection, has_wrk, run_wrk
from bench.infer_load import Connection, closed_loop, open_loop
from bench.infer_process import Meter
from bench.infer_requests import PROTOCOLS, Body, Target, make_body
from bench.report import aligned, keep

COLUMNS = {
    "p50_ms": "p50 ms",
    "p90_ms": "p90",
    "p99_ms": "p99",
    "max_ms": "max",
    "errors": "errors",
    "server_cores": "server cores",
    "server_us": "CPU µs/req",
    "client_cores": "client cores",
    "other_cores": "other load",
}


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    add("--clients", type=int, nargs="+", default=[1, 16], help="requests under way; each is measured in turn")
    add("--rate", type=float, default=0.0, help="open loop: requests a second, Poisson; 0: closed loop")
    add("--seconds", type=float, default=2.0, help="of a run; wrk rounds them up")
    add("--runs", type=int, default=3)
    add("--shape", nargs="+", default=[], metavar="INPUT=1,16", help="shapes of inputs with open dimensions (else 1)")
    add("--no-wrk", action="store_true", help="the client of our own, also where wrk is installed")
    add("--json", type=Path, help="write every number to this file")
    add("--no-progress", action="store_true")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.infer", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--server", action="append", metavar="NAME=HTTP[,GRPC]", help="host:port of each; default: 127.0.0.1:8000, 8001"
    )
    add_load_arguments(parser)
    return parser.parse_args(argv)


async def measure(targets: Sequence[Target], options: argparse.Namespace) -> dict[str, Any]:
    """All runs of all targets at every point; a server that goes down meanwhile is measured no further.

    Raises OSError for one that never answered.
    """
    shapes = dict(_shape(text) for text in options.shape)
    points = [
        {"target": target.name, "protocol": protocol, "clients": clients, "runs": []}
        for protocol in options.protocols
        for clients in options.clients
        for target in targets
        if target.grpc or not protocol.startswith("grpc")
    ]
    by_name = {target.name: target for target in targets}
    lost: set[str] = set()
    settings = {name: value for name, value in vars(options).items() if isinstance(value, int | float | list)}
    host = {
        "system": platform.platform(),
        "python": platform.python_version(),
        "client": "wrk" if _uses_wrk(options) else "own",
    }
    with tqdm(total=len(points) * options.runs, unit="run", disable=options.no_progress, file=sys.stderr) as bar:
        for group in _groups(points):
            for number in range(options.runs + 1):  # the first warms up and does not count
                for point in group:
                    if point["target"] in lost:
                        continue
                    bar.set_description(f"{point['target']} {point['protocol']} {point['clients']}")
                    target = by_name[point["target"]]
                    try:
                        body = make_body(target, point["protocol"], shapes)
                        numbers = await _run(target, point, body, options, 0.5 if number == 0 else options.seconds)
                    except OSError as error:
                        if not _was_measured(target, points):
                            raise
                        lost.add(target.name)
                        tqdm.write(f"{target.name} is gone: {error}", file=sys.stderr)
                        continue
                    if number:
                        point["runs"].append(numbers)
                        bar.update()
    points = [point for point in points if point["runs"]]
    for point in points:
        point["over_runs"] = over_runs(point["runs"])
    memory = {target.name: Meter(target.http).pss_mb() for target in targets if target.name not in lost}
    return {"settings": settings, "host": host, "points": points, "pss_mb": memory}


def _was_measured(target: Target, points: Sequence[Mapping[str, Any]]) -> bool:
    return any(point["runs"] for point in points if point["target"] == target.name)


async def measure_once(
    target: Target, protocol: str, clients: int, seconds: float, *, wrk: bool = False
) -> dict[str, float]:
    """One run of a closed loop of our own client, or of wrk where it is installed."""
    options = argparse.Namespace(rate=0.0, no_wrk=not wrk)
    return await _run(
        target, {"protocol": protocol, "clients": clients}, make_body(target, protocol, {}), options, seconds
    )


def _groups(points: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Points that differ in their target alone."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for point in points:
        groups.setdefault((point["protocol"], point["clients"]), []).append(point)
    return list(groups.values())


async def _run(
    target: Target, point: Mapping[str, Any], body: Body, options: argparse.Namespace, seconds: float
) -> dict[str, float]:
    meter = Meter(target.grpc if point["protocol"].startswith("grpc") else target.http)
    meter.start()
    if point["protocol"].startswith("http") and _uses_wrk(options):
        numbers = await run_wrk(target, body, point["clients"], seconds)
        used = meter.stop()
    else:
        async with AsyncExitStack() as stack:
            connections = await _connect(target, point, body, stack)
            meter.start()
            if options.rate:
                sample = await open_loop(connections, options.rate, seconds, seed=1)
            else:
                sample = await closed_loop(connections, seconds)
            used = meter.stop()
        numbers = sample.numbers()
        for text in sorted(set(sample.errors))[:3]:
            tqdm.write(f"{target.name} {point['protocol']}: {text}", file=sys.stderr)
    if used and numbers["requests_per_s"]:
        used["server_us"] = used["server_cores"] / numbers["requests_per_s"] * 1e6
    return {**numbers, **used}


def _uses_wrk(options: argparse.Namespace) -> bool:
    return has_wrk() and not options.no_wrk and not options.rate


async def _connect(target: Target, point: Mapping[str, Any], body: Body, stack: AsyncExitStack) -> list[Connection]:
    connections: list[Connection] = []
    channels = Channels(target, point["clients"]) if point["protocol"].startswith("grpc") else None
    if channels is not None:
        stack.push_async_callback(channels.close)
    for index in range(point["clients"]):
        if channels is None:
            connection: Connection = await HttpConnection.open(target, body)
        else:
            connection = channels.connection(index, body, stream=point["protocol"] == "grpc-stream")
        stack.push_async_callback(connection.close)
        connections.append(connection)
    await asyncio.gather(*(connection.call() for connection in connections))
    return connections


def table(report: Mapping[str, Any]) -> str:
    """One line a point: medians over the runs, the rate's spread, and its ratio to the first target's."""
    lines = [["protocol", "clients", "target", "req/s", "[min max]", "ratio", *COLUMNS.values()]]
    for group in _groups(report["points"]):
        base = group[0]["over_runs"]["requests_per_s"]["median"]
        for point in group:
            numbers = point["over_runs"]
            rate = numbers["requests_per_s"]
            cells = [_cell(name, numbers[name]["median"]) if name in numbers else "-" for name in COLUMNS]
            spread = f"[{rate['min']:.0f} {rate['max']:.0f}]"
            ratio = f"{rate['median'] / base:.2f}" if base else "-"
            head = [point["protocol"], str(point["clients"]), point["target"]]
            lines.append([*head, f"{rate['median']:.0f}", spread, ratio, *cells])
    text = aligned(lines)
    memory = ", ".join(f"{name} {size:.0f} MB" for name, size in report["pss_mb"].items() if size)
    return f"{text}\nPSS: {memory}" if memory else text


def _cell(name: str, value: float) -> str:
    if name in ("errors", "server_us"):
        return f"{value:.0f}"
    return f"{value:.2f}"


def _shape(text: str) -> tuple[str, list[int]]:
    name, _, sizes = text.partition("=")
    return name, [int(size) for size in sizes.split(",")]


def target_of(text: str, model: str) -> Target:
    """The target that NAME=HTTP[,GRPC] names."""
    name, _, addresses = text.rpartition("=")
    http, _, grpc = addresses.partition(",")
    return Target(name or http, model, http, grpc)


def finish(report: dict[str, Any], options: argparse.Namespace) -> int:
    """Print, write the file, and 1 when a request failed."""
    print(table(report))
    keep(report, options.json)
    return 1 if any(run["errors"] for point in report["points"] for run in point["runs"]) else 0


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    servers = options.server or ["server=127.0.0.1:8000,127.0.0.1:8001"]
    try:
        report = uvloop.run(measure([target_of(text, options.model) for text in servers], options))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
