"""The messages of a chat as they come on the wire -> messages a template can render."""

from backends.api.errors import ServingError
from openai_api.errors import invalid, unsupported
from openai_api.fields import Fields, read_array, read_string, wrong_type
from openai_api.options import OpenAIOptions

Message = dict[str, object]

_MAX_PARTS = 4096
_TEXT_KINDS = ("text", "input_text", "output_text")
_PART_KINDS = ("audio", "file", "image_url", "input_audio", "input_image", "refusal", "video_url")


def read_messages(fields: Fields, limits: OpenAIOptions) -> list[Message]:
    """The conversation, at least one message; each keeps its unknown members, which templates may use.

    Raises ServingError with the path of the wrong member (`messages[2].content[0].type`).
    """
    messages = fields.array("messages", read_message, limits.max_messages, min_length=1)
    if messages is None:
        raise fields.missing("messages")
    return messages


def read_message(value: object, param: str) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    fields = Fields(value, param)
    role = fields.string("role", 64, min_length=1)
    if role is None:
        raise fields.missing("role")
    message = {name: member for name, member in value.items() if member is not None}
    message["role"] = role
    message["content"] = read_content(fields, "content", is_required=role in ("user", "system", "developer"))
    if fields.raw("tool_calls") is not None:
        message["tool_calls"] = fields.array("tool_calls", _tool_call, 128)
    return message


def read_content(fields: Fields, name: str, *, is_required: bool) -> str | list[Message] | None:
    """Text, text parts, or None, which the roles that speak for the model or a tool may have."""
    value, param = fields.raw(name), fields.param(name)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return read_array(value, param, _part, _MAX_PARTS)
    if value is None:
        if is_required:
            raise fields.missing(name)
        return None
    raise wrong_type(param, "a string or an array of parts", value)


def _part(value: object, param: str) -> Message:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    kind = value.get("type", "text" if "text" in value else None)
    if kind in _TEXT_KINDS:
        return {"type": "text", "text": read_string(value.get("text"), f"{param}.text")}
    if kind in _PART_KINDS:
        raise unsupported(param, f"'{param}': parts of type {kind} are not supported, only text", "unsupported_value")
    raise invalid("invalid_value", f"{param}.type", f"'{param}.type': expected text")


def _tool_call(value: object, param: str) -> Message:
    """A call the model made earlier; the template parses its `arguments`."""
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    function = Fields(value, param).child("function")
    if function is None:
        raise Fields(value, param).missing("function")
    if function.string("name", 256, min_length=1) is None:
        raise function.missing("name")
    _check_arguments(function)
    return value


def _check_arguments(function: Fields) -> None:
    arguments = function.raw("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        raise _wrong_arguments(function, arguments)


def _wrong_arguments(function: Fields, arguments: object) -> ServingError:
    return wrong_type(function.param("arguments"), "a string", arguments)
