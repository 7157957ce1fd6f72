"""One choice of an answer: the only path from the engine's tokens to text, streamed or whole."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, TokenEvent, TokenLogprobs
from backends.text.stream import TextDelta, TextStream
from openai_api.calls import CallPiece
from openai_api.interpreter import Interpreter, Speech

Entry = tuple[int, TokenLogprobs | None]
"""A token with its log-probabilities; None for a prompt's first token, which has none."""


@dataclass(slots=True)
class Delta:
    """A piece of a choice. `tokens` are generated ones; `entries`, where asked for, cover an echoed prompt too.

    `num_reasoning` of the generated tokens were reasoning. Those of a reasoning that the request does not want to see
    are counted in `num_hidden` and are not among `tokens` and `entries`. `finish_reason` is OpenAI's word, set on the last piece alone; `stop_reason` is the stop string or stop token
    that ended the choice.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)
    num_reasoning: int = 0
    num_hidden: int = 0

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.finish_reason is not None)

    @property
    def is_only_text(self) -> bool:
        """Whether there is nothing to tell of but the text."""
        return bool(self.text) and not (self.entries or self.reasoning or self.calls or self.finish_reason)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) + self.num_hidden

    def extend(self, other: "Delta") -> None:
        """Append the piece that follows."""
        self.text += other.text
        self.tokens += other.tokens
        self.entries += other.entries
        self.finish_reason = other.finish_reason
        self.stop_reason = other.stop_reason
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.num_reasoning += other.num_reasoning
        self.num_hidden += other.num_hidden


def fold(deltas: Iterable[Delta]) -> Delta:
    """One delta that says what all of them say."""
    whole = Delta()
    for delta in deltas:
        whole.extend(delta)
    return whole


@dataclass(frozen=True, slots=True)
class Echo:
    """The part of a prompt that an answer repeats: its text and, `with_entries`, its log-probabilities; `alone`
    where nothing generated follows."""

    text: str
    with_entries: bool = False
    alone: bool = False


class Choice:
    """Turns the token events of one GenerateRequest into deltas.

    A delta always says something (text, reasoning, a part of a call) or is the end: tokens that do not complete a character, or may still become part of a
    stop string, wait for those that do.
    """

    __slots__ = (
        "_echo",
        "_interpreter",
        "_speech",
        "_text",
        "_waiting",
        "echo_text",
        "finished",
        "index",
        "num_cached",
        "prompt_logprobs",
        "request",
    )

    def __init__(
        self,
        index: int,
        request: GenerateRequest,
        text: TextStream,
        echo: Echo | None = None,
        speech: Speech | None = None,
    ) -> None:
        """`speech` None: all text is the answer."""
        self.index = index
        self.request = request
        self.num_cached = 0
        self.finished = False
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._text = text
        self._echo = echo
        self.echo_text = "" if echo is None else echo.text
        self._waiting: Delta | None = None
        self._speech = speech or Speech()
        self._interpreter: Interpreter | None = None if self._speech.is_plain else self._speech.interpreter()

    async def take(self) -> list[Delta]:
        """The deltas that are there, waiting for a token when there is none; [] once the choice has finished.

        Raises the ServingError of a failed stream; a stream that ends without a finish reason is one.
        """
        deltas: list[Delta] = []
        while not self.finished and not deltas:
            events = await self.request.stream.take()
            if not events:
                raise _unfinished()
            deltas = self._deltas(events)
        return deltas

    def poll(self) -> list[Delta]:
        """The deltas that are there now, for a reader that is told by `request.stream.notify` when to look.

        Raises as `take` does.
        """
        stream = self.request.stream
        had_ended = stream.ended
        events = stream.poll()
        if had_ended and not events and not self.finished:
            raise _unfinished()
        return self._deltas(events)

    async def rest(self) -> list[Delta]:
        """All deltas still to come: what a plain answer is made of."""
        deltas: list[Delta] = []
        while not self.finished:
            deltas += await self.take()
        return deltas

    def _deltas(self, events: Sequence[TokenEvent]) -> list[Delta]:
        return [delta for event in events if (delta := self._push(event)) is not None]

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
        if self._interpreter is None:
            return self._plain(self._text.push(event))
        whole = Delta()
        for single in _singles(event):
            if not self.finished:
                whole.extend(self._interpreted(self._interpreter, self._text.push(single)))
        return whole

    def _plain(self, piece: TextDelta) -> Delta:
        if piece.finish_reason is None:
            return Delta(piece.text, piece.tokens, _entries(piece.logprobs))
        self._end()
        return Delta(piece.text, piece.tokens, _entries(piece.logprobs), piece.finish_reason.value, piece.stop_reason)

    def _interpreted(self, interpreter: Interpreter, piece: TextDelta) -> Delta:
        """One token's part, told apart."""
        delta, was_reasoning = self._plain(piece), interpreter.is_reasoning
        said = interpreter.push(piece.text) if delta.finish_reason is None else interpreter.end(piece.text)
        delta.text, delta.reasoning, delta.calls = said.text, said.reasoning, said.calls
        if delta.finish_reason is not None:
            delta.finish_reason = interpreter.finish_reason(delta.finish_reason)
        if was_reasoning or interpreter.is_reasoning or said.reasoning:
            delta.num_reasoning = len(delta.tokens)
            if not self._speech.include_reasoning:
                delta.reasoning, delta.num_hidden = "", len(delta.tokens)
                delta.tokens, delta.entries = [], []
        return delta

    def _join(self, delta: Delta) -> Delta | None:
        """`delta` after what waits for it; None while both together say nothing yet."""
        if self._waiting is not None:
            self._waiting.extend(delta)
            delta = self._waiting
        if not delta.says_something:
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


def _unfinished() -> ServingError:
    return ServingError(Code.INTERNAL, "the engine's stream ended without a finish reason")


def _singles(event: TokenEvent) -> list[TokenEvent]:
    """The event as one event a token, so that each token is counted where it belongs."""
    if len(event.tokens) <= 1:
        return [event]
    logprobs = event.logprobs
    singles = [
        TokenEvent([token], None if logprobs is None else logprobs[place : place + 1])
        for place, token in enumerate(event.tokens)
    ]
    singles[-1].finish, singles[-1].stop_token = event.finish, event.stop_token
    return singles


def _entries(logprobs: list[TokenLogprobs] | None) -> list[Entry]:
    return [] if logprobs is None else [(entry.token, entry) for entry in logprobs]
