"""Tool calls in what a model says: each family's own format, found in a text that comes in pieces."""

import ast
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from openai_api.reasoning import num_begun

Call = tuple[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of call number `index`. The first one of a call has its id and its name, and no arguments."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


@dataclass(slots=True)
class Parsed:
    text: str = ""
    calls: list[CallPiece] = field(default_factory=list)


class CallReader(Protocol):
    """Takes the text of one choice in pieces."""

    @property
    def is_complete(self) -> bool:
        """Whether there were calls, each of them whole."""
        ...

    def push(self, text: str) -> Parsed: ...

    def flush(self) -> Parsed:
        """What was held back, when no more text comes."""
        ...


def new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls: behind `start`, up to `end` ("": to the end of the answer).

    `openings` begin a call too, but only as the first thing an answer says. `parse` reads what stands between, and
    raises ValueError for what is no call. `tokens` are special tokens that have to be seen as text.
    """

    name: str
    start: str
    end: str
    parse: Callable[[str], list[Call]]
    openings: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()


class AutoCalls:
    """Calls that a model makes by itself. Each is told whole; what turns out to be none is told as text."""

    def __init__(self, call_format: CallFormat, names: frozenset[str], parallel: bool) -> None:
        self._format = call_format
        self._names = names
        self._parallel = parallel
        self._held = ""
        self._inside = False
        self._said_anything = False
        self._num_calls = 0

    @property
    def is_complete(self) -> bool:
        return self._num_calls > 0

    def push(self, text: str) -> Parsed:
        self._held += text
        parsed = Parsed()
        while self._advance(parsed):
            pass
        return parsed

    def flush(self) -> Parsed:
        parsed = Parsed()
        if self._inside:
            self._close(parsed, self._held, "")
        elif self._held.strip() or not self._num_calls:
            parsed.text = self._held
        self._held, self._inside = "", False
        return parsed

    def _advance(self, parsed: Parsed) -> bool:
        """One step through what is held; False when more text is needed."""
        if self._inside:
            return self._read_call(parsed)
        opening = self._opening()
        if opening is None:
            return False
        if opening:
            return True
        start = self._format.start
        place = self._held.find(start) if start else -1
        if place >= 0:
            self._say(parsed, self._held[:place])
            self._held = self._held[place + len(start) :]
            self._inside = True
            return True
        self._say_but(parsed, num_begun(self._held, start))
        return False

    def _opening(self) -> bool | None:
        """Whether the answer opens with a call; None while it says too little to know."""
        if self._said_anything or not self._format.openings:
            return False
        said = self._held.lstrip()
        if not said:
            return None
        self._said_anything = True
        self._inside = said.startswith(self._format.openings)
        return self._inside

    def _read_call(self, parsed: Parsed) -> bool:
        end = self._format.end
        place = self._held.find(end) if end else -1
        if place < 0:
            return False
        body, self._held = self._held[:place], self._held[place + len(end) :]
        self._inside = False
        self._close(parsed, body, end)
        return True

    def _close(self, parsed: Parsed, body: str, end: str) -> None:
        try:
            calls = self._format.parse(body)
        except (ValueError, RecursionError, MemoryError):
            calls = []
        if not calls or any(name not in self._names for name, _ in calls):
            opened = "" if body.lstrip().startswith(self._format.openings or ("\0",)) else self._format.start
            parsed.text += opened + body + end
            self._said_anything = True
            return
        for name, arguments in calls:
            if self._parallel or not self._num_calls:
                parsed.calls.append(CallPiece(self._num_calls, "", new_call_id(), name))
                parsed.calls.append(CallPiece(self._num_calls, json.dumps(arguments, ensure_ascii=False)))
                self._num_calls += 1

    def _say(self, parsed: Parsed, text: str) -> None:
        """White space around calls is theirs."""
        if text.strip() or not (self._num_calls or not self._said_anything):
            parsed.text += text
            self._said_anything = True

    def _say_but(self, parsed: Parsed, num_held: int) -> None:
        cut = len(self._held) - num_held
        text = self._held[:cut]
        if text.strip() or (text and self._said_anything and not self._num_calls):
            parsed.text += text
            self._said_anything = True
            self._held = self._held[cut:]


def _json_call(value: object) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("no arguments")
    return value["name"], arguments


def _hermes(text: str) -> list[Call]:
    value = json.loads(text)
    return [_json_call(item) for item in (value if isinstance(value, list) else [value])]


def _llama3(text: str) -> list[Call]:
    """One object, or several with semicolons between them."""
    text = text.strip().removeprefix("<|python_tag|>").lstrip()
    decoder, calls = json.JSONDecoder(), []
    while text:
        value, end = decoder.raw_decode(text)
        calls.append(_json_call(value))
        text = text[end:].lstrip("; \n")
    return calls


def _mistral(text: str) -> list[Call]:
    """An array of calls, or `name[ARGS]{...}`, several of these with the start tag between them."""
    if text.lstrip().startswith(("[", "{")):
        return _hermes(text)
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        name, _, arguments = part.partition("[ARGS]")
        if not arguments:
            name, brace, rest = part.partition("{")
            arguments = brace + rest
        calls.append(_json_call({"name": name.strip(), "arguments": json.loads(arguments)}))
    return calls


def _pythonic(text: str) -> list[Call]:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    if not isinstance(tree, ast.List):
        raise ValueError("no list of calls")
    return [_python_call(node) for node in tree.elts]


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no call with named arguments")
    arguments: dict[str, object] = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    json.dumps(arguments)
    return ast.unparse(node.func), arguments


HERMES = CallFormat("hermes", "<tool_call>", "</tool_call>", _hermes, tokens=("<tool_call>", "</tool_call>"))
LLAMA3_JSON = CallFormat("llama3_json", "<|python_tag|>", "", _llama3, ("{",), ("<|python_tag|>",))
MISTRAL = CallFormat("mistral", "[TOOL_CALLS]", "", _mistral, tokens=("[TOOL_CALLS]", "[ARGS]"))
PYTHONIC = CallFormat("pythonic", "", "", _pythonic, ("[",))


def call_format(template: str) -> CallFormat | None:
    """How the model of a chat template writes calls, told from what the template prints; None where it says nothing."""
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<|python_tag|>" in template or ('{"name": ' in template and '"parameters": ' in template):
        return LLAMA3_JSON
    if "func_name1(" in template or "[func" in template:
        return PYTHONIC
    return None
