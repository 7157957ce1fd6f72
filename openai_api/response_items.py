"""What a choice says -> the items of a response: reasoning, a message, calls, and the events in which they grow."""

import secrets
from dataclasses import dataclass
from typing import Any, Protocol

from openai_api.calls import CallPiece
from openai_api.choice import Delta
from openai_api.logprobs import ChatLogprobs

Event = dict[str, Any]
"""The members of one event; `type` says which. Its number is given where it is sent."""


class _Item(Protocol):
    """An item that is being written."""

    def open(self) -> list[Event]: ...

    def close(self, status: str) -> list[Event]: ...

    def as_json(self, status: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an item of text is named; `members` are those that only its kind has."""

    type: str
    prefix: str
    part: str
    members: dict[str, Any]


_MESSAGE = _Kind("message", "msg", "output_text", {"role": "assistant"})
_REASONING = _Kind("reasoning", "rs", "reasoning_text", {"summary": []})


class _Text:
    """A message or a reasoning: one part, whose text grows."""

    def __init__(self, kind: _Kind, index: int) -> None:
        self.kind = kind
        self._id = f"{kind.prefix}_{secrets.token_hex(16)}"
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._text = ""
        self._logprobs: list[Any] = []

    def open(self) -> list[Event]:
        item = {**self.as_json("in_progress"), "content": []}
        return [_added(self._place, item), {"type": "response.content_part.added", **self._place, "part": self._part()}]

    def write(self, text: str, logprobs: list[Any]) -> list[Event]:
        self._text += text
        self._logprobs += logprobs
        if not text:
            return []  # the end of a sequence has a log-probability and no text
        return [self._event("delta", {"delta": text}, logprobs)]

    def close(self, status: str) -> list[Event]:
        return [
            self._event("done", {"text": self._text}, self._logprobs),
            {"type": "response.content_part.done", **self._place, "part": self._part()},
            _done(self._place, self.as_json(status)),
        ]

    def as_json(self, status: str) -> dict[str, Any]:
        head = {"id": self._id, "type": self.kind.type, "status": status}
        return {**head, **self.kind.members, "content": [self._part()]}

    def _event(self, name: str, said: dict[str, Any], logprobs: list[Any]) -> Event:
        event = {"type": f"response.{self.kind.part}.{name}", **self._place, **said}
        return event | {"logprobs": logprobs} if self.kind is _MESSAGE else event

    def _part(self) -> dict[str, Any]:
        part = {"type": self.kind.part, "text": self._text}
        return part | {"annotations": [], "logprobs": list(self._logprobs)} if self.kind is _MESSAGE else part


class _Call:
    def __init__(self, index: int, call_id: str, name: str) -> None:
        self._id = f"fc_{secrets.token_hex(16)}"
        self._place = {"item_id": self._id, "output_index": index}
        self._called = {"call_id": call_id, "name": name}
        self._arguments = ""

    def open(self) -> list[Event]:
        return [_added(self._place, self.as_json("in_progress"))]

    def write(self, arguments: str) -> list[Event]:
        self._arguments += arguments
        return [{"type": "response.function_call_arguments.delta", **self._place, "delta": arguments}]

    def close(self, status: str) -> list[Event]:
        said = {"name": self._called["name"], "arguments": self._arguments}
        return [
            {"type": "response.function_call_arguments.done", **self._place, **said},
            _done(self._place, self.as_json(status)),
        ]

    def as_json(self, status: str) -> dict[str, Any]:
        head = {"id": self._id, "type": "function_call", "status": status}
        return {**head, **self._called, "arguments": self._arguments}


class ResponseItems:
    """Takes the deltas of one choice in order; one item is open at a time, and each delta has the events it causes.

    A response has at least one item: a choice that says nothing is an empty message. `form` None: without
    log-probabilities.
    """

    def __init__(self, form: ChatLogprobs | None) -> None:
        self._form = form
        self._closed: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self.is_cut = False

    def push(self, delta: Delta) -> list[Event]:
        events: list[Event] = []
        if delta.reasoning:
            events += self._write(_REASONING, delta.reasoning, [])
        logprobs = self._logprobs(delta)
        if delta.text or (logprobs and self._is_open(_MESSAGE)):
            events += self._write(_MESSAGE, delta.text, logprobs)
        for piece in delta.calls:
            events += self._call(piece)
        return events if delta.finish_reason is None else events + self._end(delta.finish_reason)

    def as_json(self) -> list[dict[str, Any]]:
        """The output so far; an item that is still open is not complete."""
        return self._closed if self._open is None else [*self._closed, self._open.as_json("incomplete")]

    def _is_open(self, kind: _Kind) -> bool:
        return isinstance(self._open, _Text) and self._open.kind is kind

    def _write(self, kind: _Kind, text: str, logprobs: list[Any]) -> list[Event]:
        events = [] if self._is_open(kind) else self._begin(_Text(kind, self._next_index()))
        assert isinstance(self._open, _Text)
        return events + self._open.write(text, logprobs)

    def _call(self, piece: CallPiece) -> list[Event]:
        """The first piece of a call has its name and no arguments."""
        if piece.id:
            return self._begin(_Call(self._next_index(), piece.id, piece.name))
        assert isinstance(self._open, _Call)
        return self._open.write(piece.arguments)

    def _next_index(self) -> int:
        return len(self._closed) + (self._open is not None)

    def _begin(self, item: _Item) -> list[Event]:
        events = self._finish("completed")
        self._open = item
        return events + item.open()

    def _finish(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        self._closed.append(item.as_json(status))
        return item.close(status)

    def _end(self, finish_reason: str) -> list[Event]:
        self.is_cut = finish_reason == "length"
        says_nothing = self._open is None and not self._closed
        events = self._begin(_Text(_MESSAGE, 0)) if says_nothing else []
        return events + self._finish("incomplete" if self.is_cut else "completed")

    def _logprobs(self, delta: Delta) -> list[Any]:
        """Those of the tokens that were said: what was thought comes before them."""
        said = delta.entries[delta.num_reasoning - delta.num_hidden :]
        return [] if self._form is None else self._form.tokens(said)


def _added(place: dict[str, Any], item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.added", "output_index": place["output_index"], "item": item}


def _done(place: dict[str, Any], item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.done", "output_index": place["output_index"], "item": item}
