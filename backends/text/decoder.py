"""Tokens to text as they come, never half a character: pieces put together equal the whole, byte for byte."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from backends.text.byte_table import LeadingSpace
from backends.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")
# A character has at most four bytes, so at most three of them can be waiting
_LONGEST_TAIL = 3
# The window decoder gives up waiting for a character after so many tokens: longer than any byte-fallback character
_WINDOW = 8


class Decoder(Protocol):
    """Decodes one sequence, once."""

    def push(self, token: int) -> str:
        """The text that `token` completes. U+FFFD stands only for bytes that can no longer become a character."""
        ...

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was cut, else ""."""
        ...


def text_decoder(
    tokenizer: Tokenizer,
    prompt: Sequence[int] = (),
    skip_special_tokens: bool = True,
    at_start: bool = False,
    shown: frozenset[int] = frozenset(),
) -> Decoder:
    """A decoder for the tokens that follow `prompt`.

    `at_start` says that the tokens begin a sequence of their own (a prompt that is echoed): then the space a
    SentencePiece tokenizer puts before every text is taken off again. Of the prompt only the bytes of a character it
    left unfinished count: they join the first generated token if that goes on with them, and are dropped if not.
    `shown` are special tokens that are not skipped, where the vocabulary has exact bytes.
    """
    if not tokenizer.has_exact_bytes:
        return WindowDecoder(tokenizer, prompt, skip_special_tokens)
    return ByteDecoder(tokenizer, _unfinished(tokenizer, prompt), skip_special_tokens, at_start, shown)


def decode(tokenizer: Tokenizer, tokens: Iterable[int], skip_special_tokens: bool = True) -> str:
    """The text of a whole sequence."""
    decoder = text_decoder(tokenizer, (), skip_special_tokens, at_start=True)
    pieces = [decoder.push(token) for token in tokens]
    return "".join(pieces) + decoder.flush()


class ByteDecoder:
    """A table of each token's bytes, and one incremental UTF-8 decoder."""

    __slots__ = ("_bytes", "_is_between", "_is_special", "_shown", "_skip_special", "_strip", "_tail", "_utf8")

    def __init__(
        self,
        tokenizer: Tokenizer,
        tail: bytes,
        skip_special_tokens: bool,
        at_start: bool,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._shown = shown
        self._bytes = tokenizer.token_bytes
        self._is_special = tokenizer.is_special
        self._skip_special = skip_special_tokens
        self._strip = tokenizer.leading_space if at_start else LeadingSpace.KEEP
        self._tail = tail
        self._utf8 = _UTF8("replace")
        self._is_between = True  # no bytes of a character wait for the rest

    def push(self, token: int) -> str:
        if self._skip_special and self._is_special(token) and token not in self._shown:
            return ""
        data = self._bytes(token)
        if self._strip is not LeadingSpace.KEEP and data:
            data = self._stripped(data)
        if self._tail and data:
            data = self._joined(data)
        if self._is_between and data.isascii():
            return data.decode("ascii")
        text = self._utf8.decode(data)
        self._is_between = not self._utf8.getstate()[0]
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)

    def _stripped(self, data: bytes) -> bytes:
        strip, self._strip = self._strip, LeadingSpace.KEEP
        return data.lstrip(b" ") if strip is LeadingSpace.STRIP_FIRST_TOKEN else data.removeprefix(b" ")

    def _joined(self, data: bytes) -> bytes:
        tail, self._tail = self._tail, b""
        return tail + data if _goes_on(tail, data) else data


class WindowDecoder:
    """For vocabularies whose texts are not their tokens' bytes put together: the library decodes a short window of
    tokens with and without the new one, and the difference is the new text."""

    __slots__ = ("_decode", "_read", "_sent", "_skip_special", "_tokens")

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], skip_special_tokens: bool) -> None:
        self._decode = tokenizer.decode_window
        self._skip_special = skip_special_tokens
        # tokens [0, sent)    context: their text has left
        #        [sent, len)  their text waits for a character to be complete
        self._tokens = list(prompt[-_WINDOW:])
        self._sent = len(self._tokens)
        self._read = 0

    def push(self, token: int) -> str:
        self._tokens.append(token)
        before, text = self._texts()
        waiting = len(self._tokens) - self._sent
        if len(text) <= len(before) or (text.endswith("\ufffd") and waiting < _WINDOW):
            return ""
        self._tokens = self._tokens[self._sent :]
        self._sent = len(self._tokens)
        return text[len(before) :]

    def flush(self) -> str:
        before, text = self._texts()
        self._sent = len(self._tokens)
        return text[len(before) :]

    def _texts(self) -> tuple[str, str]:
        before = self._decode(self._tokens[: self._sent], self._skip_special)
        return before, self._decode(self._tokens, self._skip_special)


def _unfinished(tokenizer: Tokenizer, prompt: Sequence[int]) -> bytes:
    """The bytes at the end of `prompt` that begin a character and do not finish it."""
    data = b""
    for token in reversed(prompt):
        if len(data) >= _LONGEST_TAIL or tokenizer.is_special(token):
            break
        data = tokenizer.token_bytes(token) + data
    utf8 = _UTF8("replace")
    utf8.decode(data)
    waiting, _ = utf8.getstate()
    return waiting


def _goes_on(tail: bytes, data: bytes) -> bool:
    """Whether the character begun in `tail` can go on with `data`."""
    utf8 = _UTF8("strict")
    try:
        utf8.decode(tail + data[:1])
    except UnicodeDecodeError:
        return False
    return True
