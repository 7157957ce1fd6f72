"""Forced calls, whose text is held to a grammar, told while they are being written."""

import re

from openai_api.calls import CallPiece, Parsed, new_call_id

_HEAD = re.compile(r'[\[, ]*\{"name": "([^"]*)", "parameters": ')


class JsonObjectScanner:
    """Finds where a JSON object ends, however its text is cut."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, text: str) -> int | None:
        """How many characters of `text` belong to the object that this completes; None while it goes on."""
        for place, letter in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif letter == "\\":
                    self._escaped = True
                elif letter == '"':
                    self._in_string = False
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


class RequiredCalls:
    """Reads `[{"name": "f", "parameters": {...}}, ...]` as `ToolUse.grammar` writes it."""

    def __init__(self) -> None:
        self._buffer = ""
        self._scanner: JsonObjectScanner | None = None
        self._num_calls = 0
        self._ended = False

    @property
    def is_complete(self) -> bool:
        """Whether every call told was told to its end."""
        return self._num_calls > 0 and self._ended

    def push(self, text: str) -> Parsed:
        self._buffer += text
        parsed = Parsed()
        while True:
            if self._scanner is None:
                found = _HEAD.search(self._buffer)
                if found is None:
                    self._ended |= "]" in self._buffer
                    return parsed
                self._buffer = self._buffer[found.end() :]
                self._scanner = JsonObjectScanner()
                parsed.calls.append(CallPiece(self._num_calls, "", new_call_id(), found[1]))
                self._num_calls += 1
            end = self._scanner.push(self._buffer)
            piece, self._buffer = self._buffer[:end], "" if end is None else self._buffer[end:]
            if piece:
                parsed.calls.append(CallPiece(self._num_calls - 1, piece))
            if end is None:
                return parsed
            self._scanner = None

    def flush(self) -> Parsed:
        return Parsed()


class NamedCall:
    """The whole text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False
        self.is_complete = False  # a named call ends with `stop`

    def push(self, text: str) -> Parsed:
        if not text:
            return Parsed()
        pieces = [] if self._begun else [CallPiece(0, "", new_call_id(), self._name)]
        self._begun = True
        return Parsed(calls=[*pieces, CallPiece(0, text)])

    def flush(self) -> Parsed:
        return Parsed()
