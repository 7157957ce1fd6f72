"""Frames as bytes on a Unix socket.

A prefix (kind, length of header, length of payload), a header in JSON and a payload. The header is one of the tuples of
`frames.py`, by kind; the payload holds its small tensors. JSON because a model's process may run in an environment
without msgspec. The server checks every header against its type.
"""

import json
import struct
from collections.abc import Callable
from importlib.util import find_spec
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from backends.python.frames import TYPES

HAS_MSGSPEC: bool = find_spec("msgspec") is not None  # not in every model's own environment
if HAS_MSGSPEC:
    import msgspec

PREFIX = struct.Struct("<III")
MAX_HEADER = 1 << 28  # bytes; more is garbage
_KINDS = {kind: number for number, kind in enumerate(TYPES)}


class FrameError(Exception):
    """Bytes that are no frame."""


def encode(frame: tuple[Any, ...], payload_size: int = 0) -> bytes:
    """Prefix and header; the payload's bytes follow them. What of a text is not Unicode becomes question marks."""
    try:
        header = _encode(frame)
    except UnicodeEncodeError:
        header = _encode(_replaced(frame))
    return PREFIX.pack(_KINDS[type(frame)], len(header), payload_size) + header


def decode(kind: int, header: "bytes | bytearray | memoryview") -> Any:
    """Raises FrameError."""
    if kind >= len(TYPES):
        raise FrameError(f"unknown kind {kind}")
    return _DECODERS[kind](header)


if HAS_MSGSPEC:
    _encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode

    def _decoder(kind: type) -> Callable[[Any], Any]:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

        def read(header: Any) -> Any:
            try:
                return decoder.decode(header)
            except msgspec.MsgspecError as error:
                raise FrameError(f"{kind.__name__}: {error}") from error

        return read

else:

    def _encode(frame: Any) -> bytes:
        return json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode()

    def _decoder(kind: type) -> Callable[[Any], Any]:
        return lambda header: rebuild(kind, json.loads(bytes(header)))


def _replaced(value: Any) -> Any:
    """`value` with texts that can be encoded. Tuples become lists, which are the same in JSON."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replaced(key): _replaced(each) for key, each in value.items()}
    return [_replaced(each) for each in value] if isinstance(value, tuple | list) else value


def rebuild(kind: Any, value: Any) -> Any:
    """`value` as json gives it, in the tuples it was made of: what msgspec does where it is installed."""
    if isinstance(kind, UnionType):
        tuples = [option for option in get_args(kind) if hasattr(option, "_fields")]
        return rebuild(tuples[0], value) if tuples and value is not None else value
    if get_origin(kind) is list:
        item = get_args(kind)[0]
        return [rebuild(item, each) for each in value]
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*(rebuild(hints[name], each) for name, each in zip(kind._fields, value, strict=True)))
    return value


_DECODERS = [_decoder(kind) for kind in TYPES]
