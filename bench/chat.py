"""Load on any OpenAI endpoint: time to first token, inter-token latency and tokens a second, over several runs.

    python -m bench.chat --url http://127.0.0.1:8000/v1 --prompt-tokens 128 --output-tokens 128 --concurrency 1 4 16

Prompts are token ids on /completions (exact lengths with any server that takes them) or, with `--api chat`, words whose number is
fitted to the wanted length first. A closed loop keeps `--concurrency` requests under way; `--rate` opens it.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from bench.chat_client import Endpoint, fetch, stream
from bench.chat_load import Call, Shape, arrivals, over_runs, summary, token_prompts, word_prompts
from bench.report import aligned, conclude, host, settings

COLUMNS = {
    "tokens_per_s": "tok/s",
    "ttft_ms_p50": "TTFT p50",
    "ttft_ms_p99": "p99 ms",
    "itl_ms_p50": "ITL p50",
    "itl_ms_p90": "p90",
    "itl_ms_p99": "p99",
    "itl_ms_max": "max ms",
    "e2e_ms_p50": "E2E p50 ms",
    "requests_per_s": "req/s",
    "errors": "errors",
}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.chat", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000/v1", help="base URL of the endpoint")
    add("--api-key", default="")
    add("--model", default="", help="default: the first the endpoint lists")
    add("--api", choices=("completions", "chat"), default="completions")
    add("--prompt-tokens", type=int, default=128)
    add("--output-tokens", type=int, default=128)
    add("--shared-prefix", type=int, default=0, help="tokens at the start of every prompt that are the same")
    add(
        "--concurrency",
        type=int,
        nargs="+",
        default=[1],
        help="requests under way; several values are measured in turn",
    )
    add("--rate", type=float, default=0.0, help="open loop: requests a second, Poisson; 0: closed loop")
    add("--requests", type=int, default=0, help="a run; default: 4 for each of --concurrency, at least 8")
    add("--runs", type=int, default=3)
    add("--warmup", type=int, default=2, help="requests before the first run, not counted")
    add("--temperature", type=float, default=0.0)
    add("--stop-at-eos", action="store_true", help="let the model end early (default: ignore_eos)")
    add(
        "--json-schema",
        type=Path,
        help="hold answers to an array of what this file describes, as long as --output-tokens",
    )
    add(
        "--token-ids", type=int, nargs=2, default=(1000, 30000), metavar=("LOW", "HIGH"), help="ids prompts are made of"
    )
    add("--seed", type=int, default=1)
    add("--timeout", type=float, default=600.0, help="seconds a request may take")
    add("--json", type=Path, help="write every number to this file")
    add("--no-progress", action="store_true")
    options = parser.parse_args(argv)
    if not 0 <= options.shared_prefix <= options.prompt_tokens:
        parser.error("--shared-prefix: expected 0 to --prompt-tokens")
    return options


class Load:
    """Makes the requests of one benchmark and sends them."""

    def __init__(self, options: argparse.Namespace, endpoint: Endpoint, model: str) -> None:
        self.options = options
        self.endpoint = endpoint
        self.model = model
        self.words_per_token = 1.0
        self.num_extra = 0  # tokens the chat template adds to a prompt
        self._seeds = itertools.count(options.seed * 1000)

    async def calibrate(self) -> None:
        """Fit how many tokens a word takes, and how many the chat template adds, for prompts of words."""
        few, many = [await self._count_tokens(count) for count in (20, 220)]
        self.words_per_token = 200 / (many - few)
        self.num_extra = round(few - 20 / self.words_per_token)

    async def run(self, concurrency: int, count: int, bar: Callable[[], object]) -> list[Call]:
        bodies = self._bodies(next(self._seeds))
        if self.options.rate > 0:
            times = arrivals(self.options.rate, count, self.options.seed)
            return list(await asyncio.gather(*[self._later(at, next(bodies), bar) for at in times]))
        left = iter(range(count))
        calls: list[Call] = []

        async def worker() -> None:
            calls.extend([await self._one(next(bodies), bar) for _ in left])

        await asyncio.gather(*[worker() for _ in range(concurrency)])
        return calls

    async def _later(self, at: float, body: dict, bar: Callable[[], object]) -> Call:
        await asyncio.sleep(at)
        return await self._one(body, bar)

    async def _one(self, body: dict, bar: Callable[[], object]) -> Call:
        call = await stream(self.endpoint, self._path, body, self.options.timeout)
        bar()
        return call

    def _bodies(self, seed: int) -> Iterator[dict]:
        options = self.options
        shape = Shape(options.prompt_tokens, options.output_tokens, options.shared_prefix)
        common = {
            "model": self.model,
            "max_tokens": shape.output,
            "temperature": options.temperature,
            "ignore_eos": not options.stop_at_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.json_schema is not None:
            common["response_format"] = response_format(json.loads(options.json_schema.read_text()))
        if options.api == "completions":
            return ({**common, "prompt": ids} for ids in token_prompts(shape, *options.token_ids, seed))
        num_words = max(1, round((shape.prompt - self.num_extra) * self.words_per_token))
        texts = word_prompts(num_words, round(shape.shared * self.words_per_token), seed)
        return ({**common, "messages": [{"role": "user", "content": text}]} for text in texts)

    async def _count_tokens(self, num_words: int) -> int:
        text = next(word_prompts(num_words, 0, self.options.seed))
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        answer = await fetch(self.endpoint, "POST", self._path, body)
        return int(answer["usage"]["prompt_tokens"])

    @property
    def _path(self) -> str:
        return "/completions" if self.options.api == "completions" else "/chat/completions"


def response_format(schema: dict) -> dict:
    """An array of what the schema describes: it goes on until the tokens are used up, so that lengths stay comparable."""
    many = {"type": "array", "items": schema, "minItems": 1000}
    return {"type": "json_schema", "json_schema": {"name": "bench", "schema": many, "strict": True}}


async def measure(options: argparse.Namespace) -> dict:
    """All runs at every concurrency. Raises ConnectionError when the endpoint does not answer."""
    endpoint = Endpoint(options.url, options.api_key)
    model = options.model or (await fetch(endpoint, "GET", "/models"))["data"][0]["id"]
    load = Load(options, endpoint, model)
    if options.api == "chat":
        await load.calibrate()
    await load.run(1, options.warmup, lambda: None)
    points = [await _point(load, concurrency) for concurrency in options.concurrency]
    asked = {**settings(options), "json_schema": str(options.json_schema or ""), "model": model}
    return {"settings": asked, "host": host(), "points": points}


async def _point(load: Load, concurrency: int) -> dict:
    options = load.options
    count = options.requests or max(8, 4 * concurrency)
    runs, errors = [], set()
    label = f"{concurrency} clients" if options.rate == 0 else f"{options.rate:g} requests/s"
    with tqdm(total=count * options.runs, desc=label, unit="req", disable=options.no_progress, file=sys.stderr) as bar:
        for _ in range(options.runs):
            calls = await load.run(concurrency, count, bar.update)
            runs.append(summary(calls, time.perf_counter()))
            errors |= {call.error for call in calls if call.error}
    return {"concurrency": concurrency, "runs": runs, "over_runs": over_runs(runs), "errors": sorted(errors)[:5]}


def table(report: dict) -> str:
    """One line a point: the median over the runs and, for the rate, its spread."""
    lines = [["clients", "prompt", "output", *COLUMNS.values()]]
    for point in report["points"]:
        numbers = point["over_runs"]
        rate = numbers["tokens_per_s"]
        cells = [f"{numbers[name]['median']:.1f}" for name in COLUMNS]
        cells[0] = f"{rate['median']:.1f} [{rate['min']:.1f} {rate['max']:.1f}]"
        lengths = [f"{numbers[name]['median']:.0f}" for name in ("prompt_tokens", "completion_tokens")]
        lines.append([str(point["concurrency"]), *lengths, *cells])
    return aligned(lines)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    report = conclude(measure(options), table, options)
    if report is None:
        return 1
    errors = [error for point in report["points"] for error in point["errors"]]
    for error in errors:
        print(f"failed: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
