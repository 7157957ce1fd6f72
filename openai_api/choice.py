"""One choice of an answer: the only path from the engine's tokens to text, streamed or whole."""

from dataclasses import dataclass, field

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from backends.text.stream import TextStream

Entry = tuple[int, TokenLogprobs | None]
"""A token with its log-probabilities; None for a prompt's first token, which has none."""


@dataclass(slots=True)
class Delta:
    """A piece of a choice. `tokens` are generated ones; `entries`, where asked for, cover an echoed prompt too.

    `finish_reason` is OpenAI's word, set on the last piece alone; `stop_reason` is the stop string or stop token
    that ended the choice.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def extend(self, other: "Delta") -> None:
        """Append the piece that follows."""
        self.text += other.text
        self.tokens += other.tokens
        self.entries += other.entries
        self.finish_reason = other.finish_reason
        self.stop_reason = other.stop_reason


@dataclass(frozen=True, slots=True)
class Echo:
    """The part of a prompt that an answer repeats: its text and, `with_entries`, its log-probabilities; `alone`
    where nothing generated follows."""

    text: str
    with_entries: bool = False
    alone: bool = False


class Choice:
    """Turns the token events of one GenerateRequest into deltas.

    A delta always carries text or the end: tokens that do not complete a character, or may still become part of a
    stop string, wait for those that do.
    """

    __slots__ = (
        "_echo",
        "_text",
        "_waiting",
        "finished",
        "index",
        "num_cached",
        "prompt_logprobs",
        "request",
    )

    def __init__(self, index: int, request: GenerateRequest, text: TextStream, echo: Echo | None = None) -> None:
        self.index = index
        self.request = request
        self.num_cached = 0
        self.finished = False
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._text = text
        self._echo = echo
        self._waiting: Delta | None = None

    async def take(self) -> list[Delta]:
        """The deltas that are there, waiting for a token when there is none; [] once the choice has finished.

        Raises the ServingError of a failed stream; a stream that ends without a finish reason is one.
        """
        deltas: list[Delta] = []
        while not self.finished and not deltas:
            events = await self.request.stream.take()
            if not events:
                raise ServingError(Code.INTERNAL, "the engine's stream ended without a finish reason")
            deltas = [delta for event in events if (delta := self._push(event)) is not None]
        return deltas

    async def whole(self) -> Delta:
        """The folded stream: what a plain answer is made of."""
        whole = Delta()
        while not self.finished:
            for delta in await self.take():
                whole.extend(delta)
        return whole

    def _push(self, event: TokenEvent) -> Delta | None:
        if self.finished:
            return None  # the engine was ahead of a stop string
        if event.num_cached:
            self.num_cached = event.num_cached
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        delta = self._decode(event)
        if self._echo is not None:
            self._waiting, self._echo = self._echoed(self._echo), None
        return self._join(delta)

    def _decode(self, event: TokenEvent) -> Delta:
        if self._echo is not None and self._echo.alone:
            self._end()
            return Delta(finish_reason=FinishReason.LENGTH.value)
        piece = self._text.push(event)
        if piece.finish_reason is None:
            return Delta(piece.text, piece.tokens, _entries(piece.logprobs))
        self._end()
        return Delta(piece.text, piece.tokens, _entries(piece.logprobs), piece.finish_reason.value, piece.stop_reason)

    def _join(self, delta: Delta) -> Delta | None:
        """`delta` after what waits for it; None while both together say nothing yet."""
        if self._waiting is not None:
            self._waiting.extend(delta)
            delta = self._waiting
        if not delta.text and delta.finish_reason is None:
            self._waiting = delta
            return None
        self._waiting = None
        return delta

    def _echoed(self, echo: Echo) -> Delta:
        if not echo.with_entries or self.prompt_logprobs is None:
            return Delta(echo.text)
        return Delta(echo.text, entries=list(zip(self.request.prompt, self.prompt_logprobs, strict=True)))

    def _end(self) -> None:
        self.finished = True
        # A stop string is found here, not in the engine: this is what tells it to stop.
        self.request.stream.cancel("the choice is complete", satisfied=True)


def _entries(logprobs: list[TokenLogprobs] | None) -> list[Entry]:
    return [] if logprobs is None else [(entry.token, entry) for entry in logprobs]
