"""Texts and pairs of texts to the tokens that an encoder was trained on, its own begin and end tokens among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from backends.api.errors import Code, ServingError
from backends.pooling.runner import Row
from backends.text.tokenizer_files import TokenizerSettings, read_tokenizer


@dataclass(frozen=True, slots=True)
class Truncation:
    """At most `keep` tokens of a row, special tokens counted; the end goes, or with `from_left` the beginning."""

    keep: int
    from_left: bool = False


class PoolingTokenizer:
    """Shared by all requests of a model; nothing changes after it is made, so threads may share it."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        self._backend = backend
        self.settings = settings
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(
        self, texts: Sequence[str], truncation: Truncation | None = None, *, add_special_tokens: bool = True
    ) -> list[Row]:
        """A row a text. Raises ServingError(INVALID) for a text that is not valid Unicode (a lone surrogate)."""
        num_special = self._backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        rows = []
        for encoding in self._encode(texts):
            if truncation is not None:
                _cut(encoding, truncation.keep - num_special, truncation)
            rows.append(_row(self._backend.post_process(encoding, None, add_special_tokens)))
        return rows

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], truncation: Truncation | None = None) -> list[Row]:
        """A row a pair; where it is cut, the longer text gives first. Raises ServingError as `encode`."""
        num_special = self._backend.num_special_tokens_to_add(True)
        rows = []
        firsts, seconds = self._encode([first for first, _ in pairs]), self._encode([second for _, second in pairs])
        for first, second in zip(firsts, seconds, strict=True):
            if truncation is not None:
                keep = longest_first(len(first.ids), len(second.ids), truncation.keep - num_special)
                for encoding, length in zip((first, second), keep, strict=True):
                    _cut(encoding, length, truncation)
            rows.append(_row(self._backend.post_process(first, second, True)))
        return rows

    def _encode(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        try:
            return list(self._backend.encode_batch_fast(list(texts), add_special_tokens=False))
        except (UnicodeEncodeError, TypeError) as error:
            raise ServingError(Code.INVALID, f"text: expected valid Unicode, got a lone surrogate ({error})") from error


def longest_first(first: int, second: int, keep: int) -> tuple[int, int]:
    """How much two texts of `first` and `second` tokens keep of `keep` together: the longer one gives until both are
    equally long, then both."""
    keep = max(keep, 0)
    if first + second <= keep:
        return first, second
    shorter = min(first, second, keep // 2)
    return (shorter, keep - shorter) if first <= second else (keep - shorter, shorter)


def load_pooling_tokenizer(folder: Path) -> PoolingTokenizer:
    """The tokenizer in a folder of Hugging Face layout. Raises ServingError."""
    return PoolingTokenizer(*read_tokenizer(folder))


def _cut(encoding: tokenizers.Encoding, length: int, truncation: Truncation) -> None:
    if len(encoding.ids) > length:
        encoding.truncate(max(length, 0), direction="left" if truncation.from_left else "right")


def _row(encoding: tokenizers.Encoding) -> Row:
    types = encoding.type_ids
    return Row(encoding.ids, types.index(1) if 1 in types else len(types))
