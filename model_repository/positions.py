"""Where each field of a config.pbtxt stands, so that a fault found in its meaning can name a line."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<word>[\w.+-]+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSER = {"{": "}", "<": ">"}
_END = "end"

Place = tuple[int, int]


def field_places(text: str) -> dict[str, Place]:
    """Path -> (line, column), both from 1, as `input[1].data_type`, and `input` for the first of several.

    For text that parses; of any other text it returns what it could make out.
    """
    scanner = _Scanner(list(_tokens(text)))
    scanner.message("", _END)
    return scanner.places


def place_of(path: str, places: dict[str, Place]) -> Place:
    """The place of `path` or of the nearest field around it that was written; (0, 0) when there is none."""
    while path:
        if path in places:
            return places[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return (0, 0)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: Place


def _tokens(text: str) -> Iterator[_Token]:
    line, start = 1, 0
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match.group(), (line, match.start() - start + 1))
        newlines = match.group().count("\n")
        if newlines:
            line += newlines
            start = match.start() + match.group().rindex("\n") + 1


class _Scanner:
    """Walks the tokens once; `places` fills as it goes."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.places: dict[str, Place] = {}
        self._tokens = tokens
        self._next = 0

    def message(self, prefix: str, closer: str) -> None:
        """Fields up to `closer`, which is consumed."""
        counts: Counter[str] = Counter()
        while (token := self._take()) is not None and token.text != closer:
            if token.kind != "word":
                continue
            if self._peek() == ":":
                self._take()
            self._field(prefix, token, counts)

    def _field(self, prefix: str, name: _Token, counts: Counter[str]) -> None:
        if self._peek() != "[":
            self._value(prefix, name.text, name.place, counts)
            return
        self._take()
        while (text := self._peek()) not in ("]", None):
            if text == ",":
                self._take()
                continue
            self._value(prefix, name.text, self._tokens[self._next].place, counts)
        self._take()

    def _value(self, prefix: str, name: str, place: Place, counts: Counter[str]) -> None:
        path = f"{prefix}{name}[{counts[name]}]"
        counts[name] += 1
        self.places[path] = place
        self.places.setdefault(prefix + name, place)
        opener = self._take()
        if opener is None:
            return
        if opener.text in _CLOSER and opener.kind == "mark":
            single = self.places
            self.message(f"{path}.", _CLOSER[opener.text])
            if counts[name] == 1:  # a field that is not repeated is asked for without an index
                for inner in [key for key in single if key.startswith(f"{path}.")]:
                    single.setdefault(prefix + name + inner.removeprefix(path), single[inner])
            return
        while self._next < len(self._tokens) and self._tokens[self._next].kind == "string":
            self._take()

    def _take(self) -> _Token | None:
        if self._next == len(self._tokens):
            return None
        self._next += 1
        return self._tokens[self._next - 1]

    def _peek(self) -> str | None:
        return self._tokens[self._next].text if self._next < len(self._tokens) else None
