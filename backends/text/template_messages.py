"""Chat messages brought into the form that a model's template understands."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from backends.api.errors import Code, ServingError

Message = dict[str, Any]
_TEXT_PARTS = ("text", "input_text", "output_text")


class SystemRole(Enum):
    ANYWHERE = "anywhere"
    FIRST_ONLY = "first_only"
    UNKNOWN = "unknown"  # its text goes before the first user message's, as Gemma 3's own template does


@dataclass(frozen=True, slots=True)
class TemplateStyle:
    """What a template understands. `takes_parts`: content as a list of `{"type": "text", "text": ...}`."""

    takes_strings: bool = True
    takes_parts: bool = False
    knows_developer: bool = False
    system: SystemRole = SystemRole.ANYWHERE


def prepare_messages(messages: Sequence[Mapping[str, Any]], style: TemplateStyle) -> list[Message]:
    """Copies of `messages` that a template of `style` renders without loss.

    Raises ServingError(INVALID) naming the message and part that no template of text can hold.
    """
    prepared = [_prepared(message, style, f"messages[{place}]") for place, message in enumerate(messages)]
    return _with_system(prepared, style)


def _prepared(message: Mapping[str, Any], style: TemplateStyle, path: str) -> Message:
    # a key that is null is one left out: templates test for presence, and print None
    prepared = {key: value for key, value in message.items() if value is not None}
    if not isinstance(prepared.get("role"), str):
        raise _invalid(f"{path}.role", f"expected a string, got {message.get('role')!r}")
    if prepared["role"] == "developer" and not style.knows_developer:
        prepared["role"] = "system"
    prepared["content"] = _content(message.get("content"), style, f"{path}.content")
    calls = prepared.pop("tool_calls", None)
    if calls:
        prepared["tool_calls"] = [_tool_call(call) for call in calls]
    return prepared


def _content(content: Any, style: TemplateStyle, path: str) -> Any:
    if isinstance(content, list):
        texts = [_part_text(part, f"{path}[{place}]") for place, part in enumerate(content)]
        return _parts(texts) if style.takes_parts else "\n".join(texts)
    if content is not None and not isinstance(content, str):
        raise _invalid(path, f"expected a string or a list of parts, got {type(content).__name__}")
    text = content or ""
    return text if style.takes_strings else _parts([text])


def _parts(texts: Sequence[str]) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind not in _TEXT_PARTS:
        raise _invalid(path, f"this model takes text parts only, got '{kind}'", "unsupported_value")
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{path}.text", f"expected a string, got {type(text).__name__}")
    return text


def _tool_call(call: Mapping[str, Any]) -> Message:
    """Arguments as an object, which templates print; text that is no JSON object stays as it is."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _with_system(messages: list[Message], style: TemplateStyle) -> list[Message]:
    """System messages where the template accepts them."""
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    if style.system is SystemRole.ANYWHERE or not system:
        return messages
    if style.system is SystemRole.FIRST_ONLY:
        if system == messages[:1]:
            return messages
        return [{**system[0], "content": _like(system[0]["content"], _joined(system))}, *others]
    return _before_first_user(_joined(system), others, style)


def _before_first_user(text: str, messages: list[Message], style: TemplateStyle) -> list[Message]:
    for place, message in enumerate(messages):
        if message["role"] == "user":
            content = _like(message["content"], f"{text}\n\n{_text(message['content'])}")
            return [*messages[:place], {**message, "content": content}, *messages[place + 1 :]]
    return [{"role": "user", "content": text if style.takes_strings else _parts([text])}, *messages]


def _joined(messages: Sequence[Message]) -> str:
    return "\n\n".join(_text(message["content"]) for message in messages)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _like(content: Any, text: str) -> Any:
    """`text` in the form that `content` has."""
    return text if isinstance(content, str) else _parts([text])


def _invalid(path: str, what: str, reason: str | None = None) -> ServingError:
    return ServingError(Code.INVALID, f"{path}: {what}", param=path, reason=reason or "invalid_value")
