"""One choice's way from token events to text: decoding, stop strings, log-probabilities and counting in one place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backends.api.request import FinishReason, TokenEvent, TokenLogprobs
from backends.text.decoder import text_decoder
from backends.text.stop import StopMatcher
from backends.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What a request says about its text. `min_tokens`: a stop string completed by one of the first so many tokens
    does not count (as in vLLM). `shown_tokens` are special tokens that have their text even where others are skipped."""

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    min_tokens: int = 0
    shown_tokens: frozenset[int] = frozenset()


@dataclass(slots=True)
class TextDelta:
    """What one event brought. `tokens` and `logprobs` are those of the event, in step with each other; `text` may lag
    behind them. `finish_reason` is set on the last delta alone; `stop_reason` is then the stop string or the id of
    the stop token, None for end of sequence and length."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class TextStream:
    """Takes the token events of one choice in order and gives their text.

    Nothing leaves that may still change: no half character, no part of a stop string. Where a stop string is complete
    the choice ends, and tokens behind the one that completed it are dropped from text, tokens, log-probabilities
    and count; whoever feeds the stream then cancels the engine's work. `num_tokens` counts what was kept: usage.
    """

    __slots__ = ("_decoder", "_is_plain", "_options", "_stop", "finished", "num_tokens")

    def __init__(self, tokenizer: Tokenizer, options: TextOptions, prompt: Sequence[int] = ()) -> None:
        """`prompt` are the tokens before the choice: bytes of a character it left unfinished are completed, not shown."""
        self._options = options
        self._decoder = text_decoder(tokenizer, prompt, options.skip_special_tokens, shown=options.shown_tokens)
        self._stop = StopMatcher(options.stop, options.include_stop_str_in_output)
        self._is_plain = self._stop.is_idle
        self.num_tokens = 0
        self.finished = False

    def push(self, event: TokenEvent) -> TextDelta:
        """The event's text. After the end everything is dropped and the delta is empty."""
        if self.finished:
            return TextDelta()
        if self._is_plain and event.finish is None:
            self.num_tokens += len(event.tokens)
            return TextDelta("".join(map(self._decoder.push, event.tokens)), event.tokens, event.logprobs)
        silent = _num_silent(event, self._options)
        pieces = []
        for place, token in enumerate(event.tokens):
            self.num_tokens += 1
            if place < len(event.tokens) - silent:
                pieces.append(self._stop.push(self._decoder.push(token), self.num_tokens > self._options.min_tokens))
            if self._stop.matched is not None:
                return self._stopped("".join(pieces), event, place + 1)
        if event.finish is None:
            return TextDelta("".join(pieces), event.tokens, event.logprobs)
        return self._ended("".join(pieces), event)

    def _stopped(self, text: str, event: TokenEvent, num_kept: int) -> TextDelta:
        self.finished = True
        logprobs = None if event.logprobs is None else event.logprobs[:num_kept]
        return TextDelta(text, event.tokens[:num_kept], logprobs, FinishReason.STOP, self._stop.matched)

    def _ended(self, text: str, event: TokenEvent) -> TextDelta:
        """The engine ended the choice: what was held leaves, unless its last character completes a stop string."""
        self.finished = True
        text += self._stop.push(self._decoder.flush(), self.num_tokens > self._options.min_tokens)
        if self._stop.matched is not None:
            return TextDelta(text, event.tokens, event.logprobs, FinishReason.STOP, self._stop.matched)
        text += self._stop.flush()
        return TextDelta(text, event.tokens, event.logprobs, event.finish, event.stop_token)


def _num_silent(event: TokenEvent, options: TextOptions) -> int:
    """How many of the event's last tokens ended the choice and have no text: 1 or 0.

    An end-of-sequence token shows where special tokens do; a stop token shows where stop strings do.
    """
    if event.finish is not FinishReason.STOP or not event.tokens:
        return 0
    shown = not options.skip_special_tokens if event.stop_token is None else options.include_stop_str_in_output
    return 0 if shown else 1


def fold(deltas: Iterable[TextDelta]) -> TextDelta:
    """The plain answer that a stream of deltas adds up to."""
    whole = TextDelta()
    pieces = []
    for delta in deltas:
        pieces.append(delta.text)
        whole.tokens.extend(delta.tokens)
        if delta.logprobs is not None:
            whole.logprobs = [*(whole.logprobs or ()), *delta.logprobs]
        if delta.finish_reason is not None:
            whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
    whole.text = "".join(pieces)
    return whole
