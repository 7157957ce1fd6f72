"""The chunks of a streamed answer, as bytes ready to send.

All that does not change over an answer is encoded once; a chunk joins it with its few changing members, since this
runs for every token of every stream.
"""

from collections.abc import Sequence
from typing import ClassVar

from backends.api.errors import ServingError
from openai_api.ascii_json import ascii_json, ascii_string
from openai_api.calls import CallPiece
from openai_api.choice import Choice, Delta
from openai_api.generation_fields import GenerationOptions
from openai_api.identity import Identity
from openai_api.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsForm, TokenTexts
from openai_api.sse import error_event
from openai_api.usage import Usage

_PLACE = b"\0"  # which JSON cannot contain
_FINISH = {None: b"null", "stop": b'"stop"', "length": b'"length"', "tool_calls": b'"tool_calls"'}


class Chunks:
    """Writes one answer's chunks; each has one choice, or none and the usage.

    `usage` is the running count that the answer keeps: chunks carry it as it stands, where the request wants that.
    """

    kind: ClassVar[str]
    around_text: ClassVar[tuple[bytes, bytes]]
    """The member that holds a choice's text, but for the text."""

    def __init__(self, identity: Identity, options: GenerationOptions, usage: Usage, texts: TokenTexts) -> None:
        self._before = b"data: " + ascii_json(identity.as_json(self.kind))[:-1] + b',"choices":['
        self._usage = usage
        self._continuous = options.continuous_usage
        self._include_usage = options.include_usage
        self._after = b',"usage":null}\n\n' if options.include_usage else b"}\n\n"
        self._with_ids = options.return_token_ids
        self._top = options.sampling.logprobs
        self._texts = texts
        self._shows_special = not options.skip_special_tokens
        self._forms: dict[int, LogprobsForm] = {}
        self._ids_told: set[int] = set()
        # choice -> what stands around the text of a chunk that has nothing else to tell, where that does not change
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._is_framed = not (self._with_ids or self._continuous)

    def opening(self, choices: Sequence[Choice]) -> bytes:
        """The chunks before any token, in the order of the choices."""
        return b""

    def delta(self, choice: Choice, delta: Delta) -> bytes:
        """One chunk for each thing that the delta says; tokens go with the first, the end with the last."""
        if self._is_framed and delta.is_only_text:
            head, tail = self._frames.get(choice.index) or self._frame(choice)
            return head + ascii_string(delta.text) + tail
        first, *others = self._contents(delta)
        if not others:
            return self._whole_chunk(choice, delta, first, delta.finish_reason)
        chunks = [self._whole_chunk(choice, delta, first, None)]
        rest = Delta(stop_reason=delta.stop_reason)
        chunks += [self._whole_chunk(choice, rest, content, None) for content in others[:-1]]
        return b"".join([*chunks, self._whole_chunk(choice, rest, others[-1], delta.finish_reason)])

    def _frame(self, choice: Choice) -> tuple[bytes, bytes]:
        head, _, tail = self._whole_chunk(choice, Delta(), _PLACE, None).partition(_PLACE)
        before, after = self.around_text
        frame = self._frames[choice.index] = head + before, after + tail
        return frame

    def _whole_chunk(self, choice: Choice, delta: Delta, content: bytes, finish_reason: str | None) -> bytes:
        members = [
            b'{"index":%d,' % choice.index,
            content,
            b',"logprobs":',
            self._logprobs(choice, delta),
            b',"finish_reason":',
            _FINISH[finish_reason],
        ]
        if finish_reason is not None:
            members += b',"stop_reason":', ascii_json(delta.stop_reason)
        if self._with_ids:
            members += b',"token_ids":', ascii_json(delta.tokens)
        return self._chunk(b"".join(members), choice)

    def ending(self) -> bytes:
        """The chunk without choices that carries the whole usage, where the request wants it."""
        if not self._include_usage:
            return b""
        return self._before + b'],"usage":' + ascii_json(self._usage.as_json()) + b"}\n\n"

    def failure(self, error: ServingError) -> bytes:
        return error_event(error)

    def _chunk(self, choice_members: bytes, choice: Choice) -> bytes:
        """A chunk of the one choice whose object, its closing brace aside, is `choice_members`."""
        after = self._after
        if self._continuous:
            after = b',"usage":' + ascii_json(self._usage.as_json()) + b"}\n\n"
        if self._with_ids and choice.index not in self._ids_told:
            self._ids_told.add(choice.index)
            choice_members, after = self._with_prompt_ids(choice_members, after, ascii_json(choice.request.prompt))
        return b"".join((self._before, choice_members, b"}]", after))

    def _with_prompt_ids(self, choice_members: bytes, after: bytes, ids: bytes) -> tuple[bytes, bytes]:
        """Where the first chunk of a choice carries its prompt's ids."""
        raise NotImplementedError

    def _text(self, text: str) -> bytes:
        before, after = self.around_text
        return before + ascii_string(text) + after

    def _contents(self, delta: Delta) -> list[bytes]:
        """The member that holds the text, once for each chunk; at least one."""
        raise NotImplementedError

    def _form(self, choice: Choice, top: int) -> LogprobsForm:
        raise NotImplementedError

    def _logprobs(self, choice: Choice, delta: Delta) -> bytes:
        if self._top is None or not delta.entries:
            return b"null"
        form = self._forms.get(choice.index)
        if form is None:
            form = self._forms[choice.index] = self._form(choice, self._top)
        return ascii_json(form.render(delta.entries))


class ChatChunks(Chunks):
    kind = "chat.completion.chunk"
    around_text = b'"delta":{"content":', b"}"

    def opening(self, choices: Sequence[Choice]) -> bytes:
        """The role of each choice: given here and never again, since clients add up what they get."""
        role = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return b"".join(self._chunk(role % choice.index, choice) for choice in choices)

    def _contents(self, delta: Delta) -> list[bytes]:
        contents = [self._text(delta.text)] if delta.text else []
        if delta.reasoning:
            text = ascii_string(delta.reasoning)
            contents.insert(0, b'"delta":{"reasoning_content":' + text + b',"reasoning":' + text + b"}")
        contents += [b'"delta":{"tool_calls":[' + _call(piece) + b"]}" for piece in delta.calls]
        return contents or [b'"delta":{}']

    def _form(self, choice: Choice, top: int) -> LogprobsForm:
        return ChatLogprobs(self._texts, top)

    def _with_prompt_ids(self, choice_members: bytes, after: bytes, ids: bytes) -> tuple[bytes, bytes]:
        return choice_members, b',"prompt_token_ids":' + ids + after


def _call(piece: CallPiece) -> bytes:
    """Id, type and name once, in a call's first piece: clients add up what they get."""
    head = b'{"index":%d,' % piece.index
    arguments = b'"arguments":' + ascii_string(piece.arguments) + b"}}"
    if not piece.id:
        return head + b'"function":{' + arguments
    name = ascii_string(piece.name)
    return head + b'"id":"' + piece.id.encode() + b'","type":"function","function":{"name":' + name + b"," + arguments


class CompletionChunks(Chunks):
    kind = "text_completion"
    around_text = b'"text":', b""

    def _contents(self, delta: Delta) -> list[bytes]:
        return [self._text(delta.text)]

    def _form(self, choice: Choice, top: int) -> LogprobsForm:
        return CompletionLogprobs(self._texts, top, self._shows_special, choice.echo_text)

    def _with_prompt_ids(self, choice_members: bytes, after: bytes, ids: bytes) -> tuple[bytes, bytes]:
        return choice_members + b',"prompt_token_ids":' + ids, after
