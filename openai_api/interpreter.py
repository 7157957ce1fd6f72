"""What a choice says -> reasoning, answer and calls: one object for each choice, streamed or whole."""

from dataclasses import dataclass, field

from backends.api.request import Grammar
from openai_api.call_scanner import NamedCall, RequiredCalls
from openai_api.calls import HERMES, AutoCalls, CallFormat, CallPiece, CallReader, Parsed
from openai_api.reasoning import ReasoningSplitter, ReasoningTags
from openai_api.tools import Mode, ToolUse, strict_calls


@dataclass(frozen=True, slots=True)
class Speech:
    """How to read the answers of one request. `begins_inside`: its prompt ends within the reasoning."""

    tools: ToolUse = field(default_factory=ToolUse)
    format: CallFormat | None = None
    tags: ReasoningTags | None = None
    begins_inside: bool = False
    include_reasoning: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether all text is the answer."""
        return self.tags is None and self._reader() is None

    @property
    def grammar(self) -> Grammar | None:
        """What holds the model's own calls to the schemas of strict tools; None where there are none, or no way to."""
        if self.tools.mode is not Mode.AUTO or self.format is not HERMES:
            return None
        return strict_calls(self.tools) if any(tool.strict for tool in self.tools.tools) else None

    @property
    def tag_texts(self) -> tuple[str, ...]:
        """Texts that are needed here even where they are special tokens."""
        tags = (self.tags.start, self.tags.end) if self.tags is not None else ()
        calls = self.format.tokens if self.format is not None and self.tools.mode is Mode.AUTO else ()
        return tags + calls

    def interpreter(self) -> "Interpreter":
        splitter = None if self.tags is None else ReasoningSplitter(self.tags, self.begins_inside)
        return Interpreter(splitter, self._reader(), self.tools.mode)

    def _reader(self) -> CallReader | None:
        match self.tools.mode:
            case Mode.NAMED:
                return NamedCall(self.tools.tools[0].name)
            case Mode.REQUIRED:
                return RequiredCalls()
            case Mode.AUTO if self.format is not None:
                return AutoCalls(self.format, self.tools.names, self.tools.parallel)
            case _:
                return None


@dataclass(slots=True)
class Said:
    text: str = ""
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list)


class Interpreter:
    """Reasoning comes first, calls are looked for in what comes after it."""

    __slots__ = ("_mode", "_reader", "_splitter")

    def __init__(self, splitter: ReasoningSplitter | None, reader: CallReader | None, mode: Mode) -> None:
        self._splitter = splitter
        self._reader = reader
        self._mode = mode

    @property
    def is_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.is_reasoning

    def push(self, text: str) -> Said:
        reasoning, answer = ("", text) if self._splitter is None else self._splitter.push(text)
        return self._said(reasoning, self._read(answer))

    def end(self, text: str) -> Said:
        """`text` is the last."""
        said = self.push(text)
        if self._splitter is not None:
            reasoning, answer = self._splitter.flush()
            said = _both(said, self._said(reasoning, self._read(answer)))
        return said if self._reader is None else _both(said, self._said("", self._reader.flush()))

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for the end: a named call ends with `stop`, an answer that was cut with `length`."""
        has_calls = self._reader is not None and self._reader.is_complete
        return "tool_calls" if reason == "stop" and has_calls and self._mode is not Mode.NAMED else reason

    def _read(self, answer: str) -> Parsed:
        return Parsed(answer) if self._reader is None else self._reader.push(answer)

    def _said(self, reasoning: str, parsed: Parsed) -> Said:
        return Said(parsed.text, reasoning, parsed.calls)


def _both(first: Said, second: Said) -> Said:
    return Said(first.text + second.text, first.reasoning + second.reasoning, first.calls + second.calls)
