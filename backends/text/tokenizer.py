"""Text to tokens and back, on the `tokenizers` library alone: neither transformers nor torch is imported."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from backends.api.errors import Code, ServingError
from backends.lm.location import find_model
from backends.text.byte_table import ByteTable, LeadingSpace, byte_table
from backends.text.tokenizer_files import TokenizerSettings, read_tokenizer

# The most code points that NFC may put together into one (Unicode standard annex 15)
_NFC_FACTOR = 4


class Tokenizer:
    """A vocabulary, shared by all requests of a model. Nothing here changes after it is made, so threads may share it."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self._backend = backend
        self._settings = settings
        self._table: ByteTable = byte_table(backend)
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(index for index, token in added.items() if token.special)
        self._prefix = self._sequence_prefix()

    # Text to tokens

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The tokens of `text`; with `add_special_tokens` after what the model's tokenizer puts before a raw text
        (never an end token). "" gives none but these.

        Raises ServingError(INVALID) for text that is not valid Unicode (a lone surrogate).
        """
        try:
            ids = self._encode(text)
        except (UnicodeEncodeError, TypeError) as error:
            raise ServingError(Code.INVALID, f"text: expected valid Unicode, got a lone surrogate ({error})") from error
        # a text that begins with its beginning token, as rendered chats do, gets no second one
        has_prefix = ids[: len(self._prefix)] == self._prefix
        return [*self._prefix, *ids] if add_special_tokens and not has_prefix else ids

    def check_length(self, text: str, max_tokens: int, param: str | None = None) -> None:
        """Refuse, without running the tokenizer, a text that cannot fit in `max_tokens` whatever its tokens are.

        Raises ServingError(INVALID, reason context_length_exceeded).
        """
        most = self.max_chars_per_token
        if most is not None and len(text) > max_tokens * most:
            raise ServingError(
                Code.INVALID,
                f"This model's maximum context length is {max_tokens} tokens, and the text of {len(text)} characters has at "
                f"least {-(-len(text) // most)} tokens. Please shorten it.",
                param=param,
                reason="context_length_exceeded",
            )

    @cached_property
    def max_chars_per_token(self) -> int | None:
        """The most characters of input that one token stands for; None where the tokenizer may swallow any number.

        Characters that a vocabulary lacks the bytes for, and drops, are counted as if it had them.
        """
        longest = max((len(piece) for piece in self._table.pieces), default=1)
        factor = _shrink_factor(self._backend)
        return None if factor is None else max(1, longest) * factor

    # Tokens to text

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token inside a text, a special token's being its name; b"" for an id without a token
        (models are often padded beyond their vocabulary)."""
        return self._table.pieces[token] if 0 <= token < len(self._table.pieces) else b""

    def is_special(self, token: int) -> bool:
        return token in self._special

    @property
    def has_exact_bytes(self) -> bool:
        """Whether a text is exactly its tokens' bytes put together (but for `leading_space`)."""
        return self._table.exact

    @property
    def leading_space(self) -> LeadingSpace:
        return self._table.leading_space

    def decode_window(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        """The library's own decoding: for vocabularies without exact bytes."""
        text: str = self._backend.decode(list(tokens), skip_special_tokens=skip_special_tokens)
        return text

    # What the files say

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return len(self._table.pieces)

    @cached_property
    def bos_id(self) -> int | None:
        return self._special_id("bos_token")

    @cached_property
    def eos_id(self) -> int | None:
        return self._special_id("eos_token")

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends an answer: the tokenizer's, and those of generation_config.json or the GGUF file."""
        own = frozenset() if self.eos_id is None else frozenset({self.eos_id})
        return self._settings.eos_ids | own

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """`bos_token`, `eos_token` and the like -> their text, as chat templates use them."""
        return self._settings.special_tokens

    @property
    def chat_template(self) -> str | None:
        return self._settings.chat_templates.get("default")

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Name -> source; most models have "default" alone, some also "tool_use" or "rag"."""
        return self._settings.chat_templates

    def token_id(self, text: str) -> int | None:
        token: int | None = self._backend.token_to_id(text)
        return token

    def to_json(self) -> str:
        """The tokenizer.json of this vocabulary, for libraries that want one."""
        text: str = self._backend.to_str()
        return text

    def _encode(self, text: str) -> list[int]:
        # the batch call lets other threads run meanwhile, and works out no offsets
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def _special_id(self, name: str) -> int | None:
        text = self._settings.special_tokens.get(name)
        return None if text is None else self.token_id(text)

    def _sequence_prefix(self) -> list[int]:
        if self._settings.adds_bos is not None:
            return [self.bos_id] if self._settings.adds_bos and self.bos_id is not None else []
        whole, bare = self._backend.encode("a").ids, self._backend.encode("a", add_special_tokens=False).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return list(whole[:start])
        return []


def load_tokenizer(location: str | Path, base: Path | None = None, pre: str | None = None) -> Tokenizer:
    """The tokenizer at `location`, taken from `base` unless absolute: a folder in Hugging Face layout, a GGUF file, or
    `package:NAME` (see backends/lm/location.py).

    `pre` stands in for what a GGUF file says in `tokenizer.ggml.pre`, for files that say it wrongly. Raises
    ServingError: NOT_FOUND for missing files, INVALID for damaged ones, UNSUPPORTED for kinds not known here.
    """
    base = base or Path()
    path = base / location
    if not (path / "tokenizer.json").is_file():  # a folder with a tokenizer may hold no model
        path = find_model(str(location), base)
    return Tokenizer(*read_tokenizer(path, pre))


def _shrink_factor(backend: tokenizers.Tokenizer) -> int | None:
    """How many characters of input may become one before tokenizing; None for no bound."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    if not getattr(backend.model, "byte_fallback", False) and not _is_byte_level(backend):
        return None  # unknown characters run together into one token
    state = json.loads(backend.normalizer.__getstate__()) if backend.normalizer is not None else None
    return _normalizer_factor(state)


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    return backend.pre_tokenizer is not None and b'"ByteLevel"' in backend.pre_tokenizer.__getstate__()


def _normalizer_factor(state: dict[str, Any] | None) -> int | None:
    if state is None or state["type"] in ("Prepend", "NFD", "NFKD", "Lowercase", "ByteLevel"):
        return 1
    if state["type"] in ("NFC", "NFKC"):
        return _NFC_FACTOR
    if state["type"] == "Replace":
        return 1 if state.get("pattern") == {"String": " "} and state.get("content") else None
    if state["type"] == "Sequence":
        factor = 1
        for inner in state["normalizers"]:
            one = _normalizer_factor(inner)
            if one is None:
                return None
            factor *= one
        return factor
    return None
