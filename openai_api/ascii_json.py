"""JSON on one line of ASCII: no separator of any client's line splitter can appear in it."""

import json

import orjson


def ascii_json(value: object) -> bytes:
    """`value` (builtins, string keys) as JSON in ASCII without line breaks. NaN and infinities must not be in it."""
    encoded = orjson.dumps(value)
    if encoded.isascii():
        return encoded
    return json.dumps(orjson.loads(encoded), separators=(",", ":")).encode()


def ascii_string(text: str) -> bytes:
    """A JSON string, quotes included."""
    return orjson.dumps(text) if text.isascii() else json.dumps(text).encode()
