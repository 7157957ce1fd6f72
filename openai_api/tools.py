"""The tools of a request, and which of them the model may or must call."""

import json
import re
from dataclasses import dataclass
from enum import Enum

from backends.api.errors import ServingError
from backends.api.request import Grammar
from openai_api.errors import invalid, unsupported
from openai_api.fields import Fields, kind_of
from openai_api.structured import Constraint, schema_grammar

MAX_TOOLS = 128
MAX_CALLS = 16  # that a forced answer may make: a small model would go on for ever
# keywords that say themselves which members there may be
_OPENING = frozenset({"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "minProperties"})
_DESCRIBING = ("name", "description", "parameters")  # members of a function that the model sees
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Mode(Enum):
    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Tool:
    """`raw` is what templates print; `schema` that of the arguments, always of an object; `param` where the function is
    in the body."""

    name: str
    raw: dict[str, object]
    schema: dict[str, object]
    strict: bool
    param: str

    @property
    def constraint(self) -> Constraint:
        """What its arguments must be, in the form that forced calls write them."""
        param = f"{self.param}.parameters"
        return schema_grammar(compact(self.schema), param), param


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` are those the model may call, at least one unless the mode is NONE."""

    tools: tuple[Tool, ...] = ()
    mode: Mode = Mode.NONE
    parallel: bool = True

    @property
    def is_forced(self) -> bool:
        return self.mode in (Mode.REQUIRED, Mode.NAMED)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    def grammar(self) -> Grammar | None:
        """What forces the calls: for a named tool its arguments, else an array of calls in a form known to the letter."""
        if self.mode is Mode.NAMED:
            return self.tools[0].constraint[0]
        if self.mode is not Mode.REQUIRED:
            return None
        more = f'(", " call){{0,{MAX_CALLS - 1}}}' if self.parallel else ""
        calls = " | ".join(f"call{place}" for place in range(len(self.tools)))
        rules = [f'start: "[" call {more} "]"', f"call: {calls}"]
        for place, tool in enumerate(self.tools):
            head = json.dumps(f'{{"name": "{tool.name}", "parameters": ')
            rules.append(f'call{place}: {head} arguments{place} "}}"')
            rules.append(f"arguments{place}: %json {json.dumps(compact(tool.schema), ensure_ascii=False)}")
        return Grammar("lark", "\n".join(rules))


def strict_calls(use: ToolUse) -> Grammar:
    """Free text with calls in the hermes format, whose arguments satisfy the schema where the tool is strict."""
    calls = " | ".join(f"call{place}" for place in range(len(use.tools)))
    rules = ["start: called* TEXT", "TEXT: /(.|\\n)*/", 'begun[lazy]: TEXT "<tool_call>"', f"called: begun ({calls})"]
    for place, tool in enumerate(use.tools):
        head = json.dumps(f'\n{{"name": "{tool.name}", "arguments": ')
        schema = compact(tool.schema) if tool.strict else {"type": "object"}
        rules.append(f'call{place}: {head} arguments{place} "}}\\n</tool_call>"')
        rules.append(f"arguments{place}: %json {json.dumps(schema, ensure_ascii=False)}")
    return Grammar("lark", "\n".join(rules))


def read_tools(fields: Fields) -> ToolUse:
    """The tools of a chat, each function in a member of its own. An empty list is none: clients send it for that.

    Raises ServingError for tools and choices that do not fit each other.
    """
    return _tool_use(fields, fields.array("tools", _nested_tool, MAX_TOOLS) or [], (None, "none"))


def read_flat_tools(fields: Fields) -> ToolUse:
    """The same for `/v1/responses`, where a tool is the function, and `auto` is said with no tools to choose from."""
    return _tool_use(fields, fields.array("tools", _flat_tool, MAX_TOOLS) or [], (None, "none", "auto"))


def _tool_use(fields: Fields, tools: list[Tool], without_tools: tuple[str | None, ...]) -> ToolUse:
    """`without_tools` are the choices that need none."""
    choice = fields.raw("tool_choice")
    parallel = fields.flag("parallel_tool_calls", True)
    if not tools:
        if choice in without_tools:
            return ToolUse()
        raise _bad_choice("is only allowed together with 'tools'")
    names = [tool.name for tool in tools]
    for place, tool in enumerate(tools):
        if tool.name in names[:place]:
            param = f"{tool.param}.name"
            raise invalid("invalid_value", param, f"'{param}': '{tool.name}' is the name of another tool already")
    mode, chosen = _choice(choice, tools)
    return ToolUse(chosen, mode, parallel) if mode is not Mode.NONE else ToolUse()


def _nested_tool(value: object, param: str) -> Tool:
    fields = _function_tool(value, param)
    function = fields.child("function")
    if function is None:
        raise fields.missing("function")
    return _tool(function, fields.values)


def _flat_tool(value: object, param: str) -> Tool:
    function = _function_tool(value, param)
    described = {name: function.values[name] for name in _DESCRIBING if function.raw(name) is not None}
    return _tool(function, {"type": "function", "function": described})


def _function_tool(value: object, param: str) -> Fields:
    if not isinstance(value, dict):
        raise invalid("invalid_type", param, f"'{param}': expected an object, got {kind_of(value)}")
    fields = Fields(value, param)
    kind = fields.string("type", 64)
    if kind is None:
        raise fields.missing("type")
    if kind != "function":
        where = fields.param("type")
        raise unsupported(where, f"'{where}': only function tools are supported", "unsupported_value")
    return fields


def _tool(function: Fields, raw: dict[str, object]) -> Tool:
    name = function.string("name", 64)
    if name is None:
        raise function.missing("name")
    if not _NAME.fullmatch(name):
        where = function.param("name")
        raise invalid("invalid_value", where, f"'{where}': expected 1 to 64 letters, digits, '_' or '-'")
    function.string("description")
    return Tool(name, raw, _parameters(function), function.flag("strict"), function.path)


def _parameters(function: Fields) -> dict[str, object]:
    given, param = function.raw("parameters"), function.param("parameters")
    if given is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(given, dict):
        raise invalid("invalid_type", param, f"'{param}': expected an object, got {kind_of(given)}")
    if given.get("type", "object") != "object":
        raise invalid("invalid_json_schema", param, f"'{param}': expected a schema of type object")
    return {"type": "object", **given}


def _choice(value: object, tools: list[Tool]) -> tuple[Mode, tuple[Tool, ...]]:
    if value is None:
        return Mode.AUTO, tuple(tools)
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise _bad_choice("expected none, auto, required or an object")
        return Mode(value), tuple(tools)
    if not isinstance(value, dict):
        raise _bad_choice(f"expected a string or an object, got {kind_of(value)}")
    fields = Fields(value, "tool_choice")
    match fields.raw("type"):
        case "function":
            return Mode.NAMED, (_named(value, tools),)
        case "allowed_tools":
            return _allowed(fields, tools)
        case _:
            raise _bad_choice("expected an object of type function or allowed_tools")


def _allowed(fields: Fields, tools: list[Tool]) -> tuple[Mode, tuple[Tool, ...]]:
    inner = fields.child("allowed_tools") or fields
    mode = inner.choice("mode", ("auto", "required")) or "auto"
    listed = inner.array("tools", lambda item, _: _named(item, tools), MAX_TOOLS, min_length=1)
    if listed is None:
        raise _bad_choice("expected the tools that are allowed")
    return Mode(mode), tuple({tool.name: tool for tool in listed}.values())


def _named(value: object, tools: list[Tool]) -> Tool:
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _bad_choice("expected the name of a tool in function.name")
    for tool in tools:
        if tool.name == name:
            return tool
    raise _bad_choice(f"there is no tool '{name[:64]}' in 'tools'")


def _bad_choice(what: str) -> ServingError:
    return invalid("invalid_value", "tool_choice", f"'tool_choice': {what}")


def compact(schema: dict[str, object]) -> dict[str, object]:
    """The schema for arguments without white space to spare, and without members it does not name unless it speaks of
    them: a small model would invent some."""
    closed: dict[str, object] = {} if _may_add(schema) else {"additionalProperties": False}
    spacing = {"whitespace_pattern": None, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return {**schema, **closed, "x-guidance": spacing}


def _may_add(schema: dict[str, object]) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return True
    return not schema.keys().isdisjoint(_OPENING) or not properties.keys() >= {str(name) for name in required}
