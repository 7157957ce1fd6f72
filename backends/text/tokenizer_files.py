"""What a model's files say about its tokenizer, read from a folder in Hugging Face layout or from a GGUF file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from backends.api.errors import Code, ServingError
from backends.lm.gguf import read_gguf
from backends.text.gguf_tokenizer import adds_bos, special_ids, tokenizer_from_gguf

_GGUF_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}
_SLOW_FILES = (
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tiktoken.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What a model's files say beside the vocabulary.

    `special_tokens`: `bos_token` and the like -> its text. `chat_templates`: name -> source. `adds_bos` None: a raw
    text gets what the tokenizer's own post-processor puts before it.
    """

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    adds_bos: bool | None = None
    eos_ids: frozenset[int] = frozenset()


def read_tokenizer(path: Path, pre: str | None = None) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    """The tokenizer in a folder of Hugging Face layout or in a GGUF file, whose `tokenizer.ggml.pre` is `pre` if given.

    Raises ServingError: NOT_FOUND for missing files, INVALID for damaged ones, UNSUPPORTED for kinds not known here.
    """
    return _of_folder(path) if path.is_dir() else _of_gguf(path, pre)


def _of_gguf(path: Path, pre: str | None) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    metadata: dict[str, Any] = dict(read_gguf(path).metadata)
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    backend = tokenizer_from_gguf(metadata)
    ids = special_ids(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {role: tokens[ids[key]] for key, role in _GGUF_ROLES.items() if key in ids}
    return backend, TokenizerSettings(
        special_tokens=names,
        chat_templates=_gguf_templates(metadata),
        adds_bos=adds_bos(metadata),
        eos_ids=frozenset(ids[role] for role in ("eos", "eot", "eom") if role in ids),
    )


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template."
    named = {
        key.removeprefix(prefix): value
        for key, value in metadata.items()
        if key.startswith(prefix) and isinstance(value, str)
    }
    default = metadata.get("tokenizer.chat_template")
    return {**named, "default": default} if isinstance(default, str) else named


def _of_folder(folder: Path) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    config = _json(folder / "tokenizer_config.json")
    backend = _backend(folder)
    return backend, TokenizerSettings(
        special_tokens=_special_tokens({**_json(folder / "special_tokens_map.json"), **config}),
        chat_templates=_folder_templates(folder, config),
        adds_bos=config.get("add_bos_token"),
        eos_ids=_generation_eos(folder),
    )


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.exists():
        return _converted(folder)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for a file it cannot read
        raise ServingError(Code.INVALID, f"tokenizer '{path}': {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _converted(folder: Path) -> tokenizers.Tokenizer:
    """From the files of a slow tokenizer (SentencePiece, WordPiece), which only transformers knows to read."""
    if not any((folder / name).exists() for name in _SLOW_FILES):
        raise ServingError(Code.NOT_FOUND, f"tokenizer: '{folder}' holds neither tokenizer.json nor tokenizer.model")
    try:
        from transformers import AutoTokenizer

        backend: tokenizers.Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # whatever transformers and its optional packages raise: the file stays unread
        raise ServingError(
            Code.UNSUPPORTED,
            f"tokenizer: '{folder}' has no tokenizer.json, and transformers could not convert its other files: {error}",
        ) from error
    return backend


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _folder_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    templates = _templates_of(config.get("chat_template"))
    templates.update(_templates_of(_json(folder / "chat_template.json").get("chat_template")))
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    single = folder / "chat_template.jinja"
    if single.exists():
        templates["default"] = single.read_text(encoding="utf-8")
    return templates


def _templates_of(value: Any) -> dict[str, str]:
    """A template alone, or a list of `{"name", "template"}`."""
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    return {entry["name"]: entry["template"] for entry in entries if isinstance(entry, dict) and "name" in entry}


def _generation_eos(folder: Path) -> frozenset[int]:
    value = _json(folder / "generation_config.json").get("eos_token_id")
    if isinstance(value, int):
        return frozenset({value})
    return frozenset(value) if isinstance(value, list) else frozenset()


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; {} where there is no such file."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise ServingError(Code.INVALID, f"tokenizer '{path}': expected a JSON object ({error})") from error
    if not isinstance(content, dict):
        raise ServingError(Code.INVALID, f"tokenizer '{path}': expected a JSON object, got {type(content).__name__}")
    return content
