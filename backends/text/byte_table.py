"""The exact bytes of every token, worked out from a vocabulary and its decoder."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tokenizers import Tokenizer


class LeadingSpace(Enum):
    """What a SentencePiece decoder takes off the start of a whole sequence (never of a later token)."""

    KEEP = "keep"
    STRIP_ONE = "strip_one"  # the dummy space put before the text
    STRIP_FIRST_TOKEN = "strip_first_token"  # every space mark of the first token


@dataclass(frozen=True, slots=True)
class ByteTable:
    """`pieces[id]` are token id's bytes in the middle of a text. `exact` False: the decoder is of another kind, and
    pieces are only an approximation, for log-probabilities."""

    pieces: list[bytes]
    leading_space: LeadingSpace
    exact: bool


def byte_table(tokenizer: Tokenizer) -> ByteTable:
    steps = _steps(_state(tokenizer.decoder))
    kinds = [step["type"] for step in steps]
    tokens = _tokens(tokenizer)
    added = {index: token.content.encode() for index, token in tokenizer.get_added_tokens_decoder().items()}
    if kinds == ["ByteLevel"]:
        return ByteTable(_pieces(tokens, added, _byte_level_piece), LeadingSpace.KEEP, exact=True)
    if kinds == ["Metaspace"]:
        strip = steps[0].get("prepend_scheme", "always") != "never"
        leading = LeadingSpace.STRIP_FIRST_TOKEN if strip else LeadingSpace.KEEP
        return ByteTable(_pieces(tokens, added, _marked_piece(steps[0]["replacement"])), leading, exact=True)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_mark(steps[0]) and _strips_one(steps[3:]) is not None:
        leading = LeadingSpace.STRIP_ONE if _strips_one(steps[3:]) else LeadingSpace.KEEP
        return ByteTable(_pieces(tokens, added, _byte_fallback_piece), leading, exact=True)
    return ByteTable(_pieces(tokens, added, str.encode), LeadingSpace.KEEP, exact=False)


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}


def _pieces(tokens: dict[int, str], added: dict[int, bytes], piece: Any) -> list[bytes]:
    pieces = [b""] * (max(tokens, default=-1) + 1)
    for index, token in tokens.items():
        pieces[index] = added[index] if index in added else piece(token)
    return pieces


def _state(component: Any) -> dict[str, Any]:
    """A component of a tokenizer as its JSON; {} for none."""
    return json.loads(component.__getstate__()) if component is not None else {}


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder] if decoder else []


def _is_mark(step: dict[str, Any]) -> bool:
    return step.get("pattern") == {"String": "▁"} and step.get("content") == " "


def _strips_one(steps: list[dict[str, Any]]) -> bool | None:
    """Whether `steps` take one space off the start; None when they do anything else."""
    if not steps:
        return False
    only = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return True if steps == [only] else None


def _byte_level_alphabet() -> dict[int, int | None]:
    """Character -> byte of GPT-2's printable alphabet: printable Latin-1 stands for itself, the rest follows from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet: dict[int, int | None] = {byte: byte for byte in printable}
    alphabet.update({0x100 + place: byte for place, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_level_alphabet()
_LETTERS = frozenset(map(chr, _ALPHABET))


def _byte_level_piece(token: str) -> bytes:
    if not _LETTERS.issuperset(token):
        return token.encode()  # outside the alphabet: the decoder takes the token as text
    return token.translate(_ALPHABET).encode("latin-1")


def _byte_fallback_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("▁", " ").encode()


def _marked_piece(mark: str) -> Any:
    return lambda token: token.replace(mark, " ").encode()
