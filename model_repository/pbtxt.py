"""config.pbtxt and the JSON form of a configuration to `ModelConfig`, and back.

Faults come as `ConfigError` with file, line, column and the field that was likely meant.
"""

import json
import re
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as pb

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from model_repository.findings import ConfigError, Finding, likely
from model_repository.positions import Place, field_places, place_of
from model_repository.proto import from_proto, to_proto
from model_repository.refused import refused_fields

__all__ = ["parse_json", "parse_text", "read_text", "to_json", "to_proto", "to_text"]

_POSITION = re.compile(r"^(\d+):(\d+) : (?:'(.*?)': (?=[A-Z]))?(.*)", re.DOTALL)
_NO_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (.*)\.$')
_BAD_ENUM = re.compile(r"Invalid enum value (.*?) for enum type ([\w.]+)")
_JSON_PATH = re.compile(r'at "?ModelConfig\.?([\w.\[\]]*?)"?\.*(?:\n|$)')
# names of element types in other systems
_TYPE_OF_WORD = {
    "float": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "half": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "double": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "int": "TYPE_INT32",
    "long": "TYPE_INT64",
    "bytes": "TYPE_STRING",
    "str": "TYPE_STRING",
    "boolean": "TYPE_BOOL",
}


def parse_text(data: bytes, file: str) -> ModelConfig:
    """The configuration in the bytes of a config.pbtxt, called `file` in errors. Empty data is an empty config.

    Raises ConfigError: INVALID for text that is not one, UNSUPPORTED for a field this server does not act on.
    """
    config, refused = read_text(data, file)
    for finding in refused:
        raise ConfigError(finding, code=Code.UNSUPPORTED)
    return config


def read_text(data: bytes, file: str) -> tuple[ModelConfig, list[Finding]]:
    """As `parse_text`, with the fields this server does not act on listed rather than raised."""
    text = _decode(data, file)
    message = pb.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ConfigError(_text_finding(str(error), file)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(Finding(file, f"not a model configuration: {error}")) from None
    places = field_places(text)
    return _typed(message, file, places), _refused(message, file, places)


def parse_json(text: str, file: str) -> ModelConfig:
    """The configuration in JSON of the form that `to_json` gives; field names also as protobuf's camel case.

    Raises ConfigError as `parse_text` does.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(Finding(file, f"not JSON: {error.msg}", error.lineno, error.colno)) from None
    except RecursionError:
        raise ConfigError(Finding(file, "not a model configuration: nested too deep")) from None
    if not isinstance(value, dict):
        raise ConfigError(Finding(file, f"expected a JSON object, got {type(value).__name__}"))
    message = pb.ModelConfig()
    try:
        json_format.ParseDict(value, message)
    except (json_format.ParseError, TypeError, ValueError) as error:
        raise ConfigError(_json_finding(str(error), file)) from None
    for finding in _refused(message, file, {}):
        raise ConfigError(finding, code=Code.UNSUPPORTED)
    return _typed(message, file, {})


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Triton's JSON form: protobuf field names, default scalars present, int64 as numbers."""
    return _message_to_json(to_proto(config))


def to_text(config: ModelConfig) -> str:
    """The config.pbtxt of `config`, which `parse_text` reads back as the same."""
    return str(text_format.MessageToString(to_proto(config)))


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(
            Finding(file, f"not UTF-8 text: byte {error.start} is {data[error.start]:#04x}", line)
        ) from None


def _typed(message: Any, file: str, places: dict[str, Place]) -> ModelConfig:
    try:
        return from_proto(message)
    except ServingError as error:
        raise ConfigError(Finding(file, error.message, *place_of(error.param or "", places))) from None


def _refused(message: Any, file: str, places: dict[str, Place]) -> list[Finding]:
    text = "field '{}' is not supported by this server yet: remove it to serve this model without it"
    return [Finding(file, text.format(path), *place_of(path, places)) for path in refused_fields(message)]


def _text_finding(error: str, file: str) -> Finding:
    match = _POSITION.match(error)
    if match is None:
        return Finding(file, error)
    line, column, snippet, message = int(match[1]), int(match[2]), match[3], match[4]
    if unknown := _NO_FIELD.search(message):
        return _unknown_field(unknown, file, line, column)
    if unknown := _NO_VALUE.search(message):
        return _unknown_value(unknown[1], unknown[2], file, line, column)
    where = f" in '{snippet.strip()}'" if snippet else ""
    return Finding(file, _printable(message.rstrip(".") + where), line, column)


def _json_finding(error: str, file: str) -> Finding:
    path = _JSON_PATH.search(error)
    place = f"{file}: {path[1]}" if path and path[1] else file
    if unknown := _NO_FIELD.search(error):
        return _unknown_field(unknown, place, 0, 0)
    if unknown := _BAD_ENUM.search(error):
        return _unknown_value(unknown[2], unknown[1], place, 0, 0)
    return Finding(file, error.rstrip("."))


def _unknown_field(match: re.Match[str], file: str, line: int, column: int) -> Finding:
    owner = _descriptor(match[1])
    suggestion = likely(match[2], [field.name for field in owner.fields])
    return Finding(file, f"{_noun(owner)} has no field '{match[2]}'.", line, column, suggestion)


def _unknown_value(enum: str, value: str, file: str, line: int, column: int) -> Finding:
    names = _enum_names(enum)
    if value.strip("'\"") in names:
        return Finding(file, f"{value} must be written without quotes", line, column)
    known = "" if (suggestion := _likely_value(value, names)) else f" Known are {', '.join(names)}."
    return Finding(file, f"'{value}' is not a value of {enum.rsplit('.', 1)[-1]}.{known}", line, column, suggestion)


def _likely_value(value: str, names: list[str]) -> str:
    usual = _TYPE_OF_WORD.get(value.lower().removeprefix("type_"), "")
    return usual if usual in names else likely(value, names)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _descriptor(full_name: str) -> Any:
    return pb.DESCRIPTOR.pool.FindMessageTypeByName(full_name)


def _enum_names(full_name: str) -> list[str]:
    return [value.name for value in pb.DESCRIPTOR.pool.FindEnumTypeByName(full_name).values]


def _noun(owner: Descriptor) -> str:
    return "a model configuration" if owner.name == "ModelConfig" else f"a {owner.name}"


def _message_to_json(message: Any) -> dict[str, Any]:
    """Every field in the order of its definition; submessages and oneof members only where they are set."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            result[field.name] = {str(key): _value_to_json(item, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_value_to_json(field, item) for item in value]
        else:
            result[field.name] = _value_to_json(field, value)
    return result


def _value_to_json(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _message_to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
