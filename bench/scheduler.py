"""What the engine itself costs a step: plan, arrays, commit and frame, without a model.

python -m bench.scheduler [--steps N]
"""

import argparse
import statistics
import time

from backends.api.request import SamplingParams
from backends.lm.step import StepBatch, StepOutput
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.frames import NewRequest, encode, engine_decoder

_PROMPT = 128


class NullRunner:
    """Answers every slice at once; remembers how long the engine was out of its hands."""

    vocab_size = 49152
    eos_token_ids = frozenset({0})
    max_model_len = 8192
    block_size = 16
    fingerprint = "null"
    layered = None

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.seconds = 0.0

    def add(self, row: int, tokens: list[int], num_prompt: int, sampling: SamplingParams, seed: int) -> None: ...

    def remove(self, row: int) -> None: ...

    def step(self, batch: StepBatch) -> StepOutput:
        start = time.perf_counter()
        output = StepOutput([[7] if samples else [] for samples in batch.samples.tolist()])
        self.seconds = time.perf_counter() - start
        return output

    def close(self) -> None: ...


def measure(num_seqs: int, num_steps: int) -> dict[str, float]:
    """Microseconds a running sequence of a decode step: median and 99th percentile, and of decoding its frame."""
    runner = NullRunner(num_seqs * 600)
    options = EngineOptions(max_num_seqs=num_seqs, max_num_batched_tokens=num_seqs * _PROMPT, itl_target_ms=1e6)
    engine = Engine(runner, options)
    for number in range(num_seqs):
        prompt = [(number * 31 + position) % 40000 for position in range(_PROMPT)]
        engine.add(NewRequest(number, prompt, SamplingParams(max_tokens=8000, ignore_eos=True), 0, 0.0, None, ""))
    while engine.schedule.waiting or any(s.computed < _PROMPT for s in engine.schedule.running):
        engine.step()
    costs, decode_costs = [], []
    for _ in range(num_steps):
        start = time.perf_counter()
        frame = encode(engine.step())
        costs.append((time.perf_counter() - start - runner.seconds) / num_seqs * 1e6)
        start = time.perf_counter()
        engine_decoder.decode(frame[4:])
        decode_costs.append((time.perf_counter() - start) / num_seqs * 1e6)
    ordered = sorted(costs)
    return {
        "median": statistics.median(costs),
        "p99": ordered[int(len(ordered) * 0.99)],
        "client decode": statistics.median(decode_costs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    print("sequences   us/sequence/step: median   p99   decoding the frame   whole step us")
    for num_seqs in (1, 16, 64, 256):
        result = measure(num_seqs, steps)
        print(
            f"{num_seqs:9d}   {result['median']:26.2f}   {result['p99']:5.2f}   {result['client decode']:10.2f}"
            f"   {result['median'] * num_seqs:20.0f}"
        )


if __name__ == "__main__":
    main()
