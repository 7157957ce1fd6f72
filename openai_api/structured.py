"""What a request says of the form of its answer: response_format, structured_outputs and the guided_ aliases -> a grammar."""

import json

from backends.api.request import Grammar
from openai_api.errors import invalid, unsupported
from openai_api.fields import Fields, read_array, read_string

ANY_OBJECT = Grammar("json_schema", '{"type":"object"}')
_MAX_CHOICES = 4096
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

Constraint = tuple[Grammar, str]
"""A grammar, and the member of the body that asked for it."""


def read_constraint(fields: Fields) -> Constraint | None:
    """The one grammar of the request. Raises ServingError for more than one, and for members that make no sense.

    Whether the grammar itself can be kept to is for `check_grammar` to say.
    """
    return _only_one(_response_format(fields), fields)


def read_text_constraint(fields: Fields) -> Constraint | None:
    """The same for `/v1/responses`, which has `text.format` for `response_format`."""
    return _only_one(_text_format(fields), fields)


def _only_one(formatted: Constraint | None, fields: Fields) -> Constraint | None:
    found = [each for each in (formatted, _structured_outputs(fields), *_guided(fields)) if each]
    if len(found) > 1:
        first, second = found[0][1], found[1][1]
        raise invalid("invalid_value", second, f"'{second}' is not allowed together with '{first}'")
    return found[0] if found else None


def schema_grammar(schema: object, param: str) -> Grammar:
    """Raises ServingError for what is no schema at all."""
    if schema is False:
        raise invalid("invalid_json_schema", param, f"'{param}': no value satisfies the schema false")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise invalid("invalid_json_schema", param, f"'{param}': expected a JSON schema, which is an object")
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))


def _response_format(fields: Fields) -> Constraint | None:
    wanted = fields.child("response_format")
    if wanted is None:
        return None
    kind = _format_kind(wanted)
    if kind != "json_schema":
        return _schemaless(kind, "response_format")
    described = wanted.child("json_schema")
    if described is None:
        raise invalid("missing_required_parameter", "response_format", "'response_format.json_schema' is required")
    return _described(described), "response_format"


def _text_format(fields: Fields) -> Constraint | None:
    text = fields.child("text")
    wanted = None if text is None else text.child("format")
    if wanted is None:
        return None
    kind = _format_kind(wanted)
    return (_described(wanted), "text.format") if kind == "json_schema" else _schemaless(kind, "text.format")


def _format_kind(wanted: Fields) -> str:
    kind = wanted.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise wanted.missing("type")
    return kind


def _schemaless(kind: str, param: str) -> Constraint | None:
    return (ANY_OBJECT, param) if kind == "json_object" else None


def _described(described: Fields) -> Grammar:
    described.string("name", 256)
    described.flag("strict")
    if described.raw("schema") is None:
        raise described.missing("schema")
    return schema_grammar(described.raw("schema"), described.param("schema"))


def _structured_outputs(fields: Fields) -> Constraint | None:
    wanted = fields.child("structured_outputs")
    if wanted is None:
        return None
    kinds = [name for name in _KINDS if wanted.raw(name) not in (None, False)]
    param = fields.param("structured_outputs")
    if len(kinds) != 1:
        raise invalid("invalid_value", param, f"'{param}': expected exactly one of {', '.join(_KINDS[:5])}")
    if kinds[0] == "structural_tag" or wanted.raw("disable_additional_properties"):
        name = "structural_tag" if kinds[0] == "structural_tag" else "disable_additional_properties"
        raise unsupported(wanted.param(name), f"'{wanted.param(name)}' is not supported by this server")
    grammar = _spaced(_of_kind(kinds[0], wanted, kinds[0]), wanted)
    return grammar, wanted.param(kinds[0])


def _guided(fields: Fields) -> list[Constraint]:
    """The names these had in vLLM before `structured_outputs`."""
    kinds = [kind for kind in _KINDS[:4] if fields.raw(f"guided_{kind}") is not None]
    return [(_of_kind(kind, fields, f"guided_{kind}"), fields.param(f"guided_{kind}")) for kind in kinds]


def _of_kind(kind: str, fields: Fields, name: str) -> Grammar:
    value, param = fields.raw(name), fields.param(name)
    match kind:
        case "json":
            return schema_grammar(_parsed(value, param) if isinstance(value, str) else value, param)
        case "json_object":
            fields.flag(name)
            return ANY_OBJECT
        case "choice":
            return _choice_grammar(read_array(value, param, read_string, _MAX_CHOICES, min_length=1))
        case "regex":
            return Grammar("regex", read_string(value, param, min_length=1))
        case _:
            return Grammar("lark", read_string(value, param, min_length=1))


def _choice_grammar(texts: list[str]) -> Grammar:
    return Grammar("lark", "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def _parsed(text: str, param: str) -> object:
    try:
        schema = json.loads(text)
        json.dumps(schema, ensure_ascii=False).encode()  # fails for half a surrogate pair, which no UTF-8 can say
    except (ValueError, RecursionError):
        raise invalid("invalid_json_schema", param, f"'{param}': expected a JSON schema, got no JSON") from None
    return schema


def _spaced(grammar: Grammar, wanted: Fields) -> Grammar:
    """The schema with what the request says of white space between its parts."""
    pattern = wanted.string("whitespace_pattern", 256, min_length=1)
    compact = wanted.flag("disable_any_whitespace")
    if pattern is None and not compact:
        return grammar
    if grammar.kind != "json_schema":
        name = wanted.param("whitespace_pattern" if pattern is not None else "disable_any_whitespace")
        raise invalid("invalid_value", name, f"'{name}' is only allowed together with a JSON schema")
    schema = json.loads(grammar.text)
    schema["x-guidance"] = (
        {"whitespace_pattern": None, "whitespace_flexible": False} if compact else {"whitespace_pattern": pattern}
    )
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))
