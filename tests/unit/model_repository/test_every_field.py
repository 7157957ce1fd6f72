"""Every field that the protocol's ModelConfig has is kept or refused: none is lost in silence."""

from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2 as pb

from backends.api.errors import ServingError
from model_repository.proto import from_proto, to_proto
from model_repository.refused import refused_fields


def leaves(descriptor: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in descriptor.fields:
        here = (*path, field.name)
        if field.message_type is None:
            yield here
        elif _is_map(field):
            value = field.message_type.fields_by_name["value"]
            if value.message_type is None:
                yield here
            else:
                yield from leaves(value.message_type, (*here, "value"))
        else:
            yield from leaves(field.message_type, here)


def set_leaf(message: Any, path: tuple[str, ...]) -> None:
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name[name]
    if _is_map(field):
        entries, key = getattr(message, name), _value(field.message_type.fields_by_name["key"])
        if rest:
            set_leaf(entries[key], tuple(rest[1:]))
        else:
            entries[key] = _value(field.message_type.fields_by_name["value"])
    elif rest:
        target = getattr(message, name)
        set_leaf(target.add() if field.is_repeated else target, tuple(rest))
    else:
        value = _value(field)
        if field.is_repeated:
            getattr(message, name).append(value)
        else:
            setattr(message, name, value)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _value(field: Any) -> Any:
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values[-1].number
    if field.type == field.TYPE_BOOL:
        return True
    return {field.TYPE_STRING: "x", field.TYPE_BYTES: b"x"}.get(field.type, 3)


def get_leaf(message: Any, path: tuple[str, ...]) -> Any:
    name, *rest = path
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if not rest:
        return list(value) if field.is_repeated and not _is_map(field) else value
    if _is_map(field):
        return get_leaf(value[_value(field.message_type.fields_by_name["key"])], tuple(rest[1:]))
    if field.is_repeated:
        return get_leaf(value[0], tuple(rest)) if value else None
    return get_leaf(value, tuple(rest))


@pytest.mark.parametrize("path", list(leaves(pb.ModelConfig.DESCRIPTOR)), ids=".".join)
def test_a_field_is_kept_or_refused(path: tuple[str, ...]) -> None:
    message = pb.ModelConfig(name="m", max_batch_size=8)
    set_leaf(message, path)
    if list(refused_fields(message)):
        return
    try:
        kept = to_proto(from_proto(message))
    except ServingError:
        return
    assert get_leaf(kept, path) == get_leaf(message, path)
