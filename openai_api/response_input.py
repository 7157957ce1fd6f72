"""The input of a response, instructions and items -> messages a template can render."""

from openai_api.errors import unsupported
from openai_api.fields import Fields, read_array, read_string, wrong_type
from openai_api.messages import Message, read_content
from openai_api.options import OpenAIOptions

_ROLES = ("user", "assistant", "system", "developer")
_MAX_PARTS = 4096


def read_input(fields: Fields, limits: OpenAIOptions) -> list[Message]:
    """The conversation, with what the instructions say before it.

    Raises ServingError with the path of the wrong member (`input[2].content[0].type`).
    """
    instructions = fields.string("instructions")
    messages: list[Message] = [] if not instructions else [{"role": "system", "content": instructions}]
    given = fields.raw("input")
    if given is None:
        raise fields.missing("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong_type("input", "a string or an array of items", given)
    return messages + _turns(read_array(given, "input", _item, limits.max_messages, min_length=1))


def _turns(items: list[Message]) -> list[Message]:
    """What a model thought, said and called in one turn is one message of a chat."""
    turns: list[Message] = []
    for item in items:
        if turns and _goes_on(turns[-1], item):
            calls = [*_calls(turns[-1]), *_calls(item)]
            turns[-1] = {**turns[-1], **item, "content": turns[-1]["content"] or item["content"]}
            if calls:
                turns[-1]["tool_calls"] = calls
        else:
            turns.append(item)
    return turns


def _goes_on(turn: Message, item: Message) -> bool:
    """Whether `item` belongs to the turn before it: calls do, and what was said after a thought."""
    if turn["role"] != "assistant" or item["role"] != "assistant" or "reasoning_content" in item:
        return False
    return "tool_calls" in item or (turn["content"] is None and "tool_calls" not in turn)


def _calls(message: Message) -> list[object]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _item(value: object, param: str) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    item = Fields(value, param)
    kind = item.string("type", 64) or ("message" if item.raw("role") is not None else None)
    match kind:
        case None:
            raise item.missing("type")
        case "message":
            return _message(item)
        case "function_call":
            return _call(item)
        case "function_call_output":
            call_id = _required(item, "call_id")
            return {"role": "tool", "tool_call_id": call_id, "content": read_content(item, "output", is_required=True)}
        case "reasoning":
            return {"role": "assistant", "content": None, "reasoning_content": _thoughts(item)}
        case "item_reference":
            message = f"'{param}': this server keeps no items to refer to; send the item itself"
            raise unsupported(param, message, "unsupported_value")
        case _:
            where = item.param("type")
            raise unsupported(where, f"'{where}': items of type {kind} are not supported", "unsupported_value")


def _message(item: Fields) -> Message:
    role = item.choice("role", _ROLES)
    if role is None:
        raise item.missing("role")
    return {"role": role, "content": read_content(item, "content", is_required=True)}


def _call(item: Fields) -> Message:
    function = {"name": _required(item, "name"), "arguments": _required(item, "arguments")}
    call = {"id": _required(item, "call_id"), "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _required(item: Fields, name: str) -> str:
    value = item.string(name)
    if value is None:
        raise item.missing(name)
    return value


def _thoughts(item: Fields) -> str:
    """The text of a reasoning item or, where it holds none, its summary."""
    texts = item.array("content", _text, _MAX_PARTS) or item.array("summary", _text, _MAX_PARTS) or []
    return "\n".join(texts)


def _text(value: object, param: str) -> str:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return read_string(value.get("text"), f"{param}.text")
