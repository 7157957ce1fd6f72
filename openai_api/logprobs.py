"""Log-probabilities in the three forms clients know: chat, text completions, and vLLM's prompt_logprobs.

Values are of the model's raw distribution, before temperature, penalties and masks.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from backends.api.request import TokenLogprobs
from backends.text.tokenizer import Tokenizer
from openai_api.choice import Entry

FLOOR = -9999.0  # what -inf becomes: JSON has no infinities


class TokenTexts:
    """How a token is printed: its text, or `token_id:N` where the request asks for that."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def data(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def is_special(self, token: int) -> bool:
        return self._tokenizer.is_special(token)

    def lossy(self, token: int) -> str:
        """The token's text; bytes that are no whole character become U+FFFD."""
        return f"token_id:{token}" if self._as_ids else self.data(token).decode("utf-8", "replace")

    def exact(self, token: int) -> str:
        """The token's text, or `bytes:\\x..` where its bytes are no whole characters: different tokens stay different."""
        if self._as_ids:
            return f"token_id:{token}"
        data = self.data(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class LogprobsForm(Protocol):
    def render(self, entries: Sequence[Entry]) -> dict[str, object]:
        """The `logprobs` object of the choice's next tokens."""
        ...


class ChatLogprobs:
    """`content`: one object a token, with its true bytes and the `top` best alternatives."""

    def __init__(self, texts: TokenTexts, top: int) -> None:
        self._texts = texts
        self._top = top

    def render(self, entries: Sequence[Entry]) -> dict[str, object]:
        return {"content": self.tokens(entries), "refusal": None}

    def tokens(self, entries: Sequence[Entry]) -> list[dict[str, object]]:
        return [self._entry(found) for _, found in entries if found is not None]

    def _entry(self, found: TokenLogprobs) -> dict[str, object]:
        top = [self._token(token, logprob) for token, logprob in found.top[: self._top]]
        return {**self._token(found.token, found.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, object]:
        return {
            "token": self._texts.lossy(token),
            "logprob": floored(logprob),
            "bytes": list(self._texts.data(token)),
        }


class CompletionLogprobs:
    """Parallel lists over the tokens. Offsets count characters from the start of the choice's text, whatever is
    still held back of it; a token that only completes a character starts where that character does, and one that the
    text does not show where the next one does."""

    def __init__(self, texts: TokenTexts, top: int, shows_special: bool = False, echo: str = "") -> None:
        """`echo` is the prompt's text where its tokens come first."""
        self._texts = texts
        self._top = top
        self._shows_special = shows_special
        self._echo = echo
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def render(self, entries: Sequence[Entry]) -> dict[str, object]:
        return {
            "tokens": [self._texts.exact(token) for token, _ in entries],
            "token_logprobs": [None if found is None else floored(found.logprob) for _, found in entries],
            "top_logprobs": [None if found is None else self._best(found) for _, found in entries],
            "text_offset": [self._advance(token) for token, _ in entries],
        }

    def _best(self, found: TokenLogprobs) -> dict[str, float]:
        """The sampled token and the `top` best: `top` entries or one more."""
        best = {self._texts.exact(token): floored(logprob) for token, logprob in found.top[: self._top]}
        best.setdefault(self._texts.exact(found.token), floored(found.logprob))
        return best

    def _advance(self, token: int) -> int:
        start = self._offset
        if self._is_shown(token):
            text = self._decoder.decode(self._texts.data(token))
            if not start and self._echo and not self._echo.startswith(" "):
                text = text.removeprefix(" ")  # what SentencePiece puts before every text
            self._offset += len(text)
        return start

    def _is_shown(self, token: int) -> bool:
        if not self._texts.is_special(token):
            return True
        if self._offset < len(self._echo):  # in a prompt's text are only those that the caller wrote
            return self._echo.startswith(self._texts.data(token).decode("utf-8", "replace"), self._offset)
        return self._shows_special


def prompt_logprobs(
    found: Sequence[TokenLogprobs | None], texts: TokenTexts, top: int
) -> list[dict[str, object] | None]:
    """vLLM's form: for each prompt token, id -> {logprob, rank, decoded_token}; the first is null."""
    return [None if entry is None else _ranked(entry, texts, top) for entry in found]


def _ranked(entry: TokenLogprobs, texts: TokenTexts, top: int) -> dict[str, object]:
    ranks = {token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top[:top], start=1)}
    ranks[entry.token] = (entry.logprob, entry.rank)
    return {
        str(token): {"logprob": floored(logprob), "rank": rank, "decoded_token": texts.lossy(token)}
        for token, (logprob, rank) in ranks.items()
    }


def floored(logprob: float) -> float:
    return max(logprob, FLOOR)
