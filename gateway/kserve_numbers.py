"""The `data` lists of KServe v2 JSON <-> numpy arrays, without per-element Python for numbers.

Like Triton, lists may be nested in any way: elements count in row-major order.
"""

from array import array
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson

from backends.api.errors import Code, ServingError
from backends.api.tensor import NUMPY_DTYPES, Tensor

_PIECE = 1 << 18  # bytes decoded in one go: between two pieces another thread may take the interpreter's lock
_FLOATS = msgspec.json.Decoder(list[float])
_INTS = msgspec.json.Decoder(list[int])
_BOOLS = msgspec.json.Decoder(list[bool])
# numpy kind -> strict decoder, and what Triton calls an element that does not fit
_BY_KIND: dict[str, tuple["msgspec.json.Decoder[Any]", str]] = {
    "f": (_FLOATS, "non-number as double"),
    "i": (_INTS, "non-signed-integer as signed-integer"),
    "u": (_INTS, "non-unsigned-integer as unsigned-integer"),
    "b": (_BOOLS, "non-boolean as boolean"),
}
_ELEMENT_TYPES: dict[str, set[type]] = {"f": {float, int}, "i": {int}, "u": {int}, "b": {bool}}


def parse_numbers(text: bytes, datatype: str, name: str) -> np.ndarray:
    """A flat array of the JSON list `text`, already known to be well-formed. Raises ServingError(INVALID)."""
    dtype = NUMPY_DTYPES[datatype]
    decoder, complaint = _BY_KIND[dtype.kind]
    if not text.startswith(b"["):
        raise wrong_type("data", "non-array as array")
    flat = text if text.find(b"[", 1) < 0 else b"[" + text.translate(None, b"[]") + b"]"
    try:
        if len(flat) <= 2 * _PIECE:
            return _to_array(decoder.decode(flat), dtype, name)
        return np.concatenate([_to_array(decoder.decode(piece), dtype, name) for piece in _pieces(flat)])
    except msgspec.ValidationError:
        raise wrong_type("data", complaint) from None
    except msgspec.DecodeError:
        # An empty inner list left two commas side by side, or a string held a bracket
        return numbers_from_list(msgspec.json.decode(text), datatype, name)


def numbers_from_list(values: list[Any], datatype: str, name: str) -> np.ndarray:
    """The same from a list that is parsed already (JSON with NaN, or of irregular nesting)."""
    dtype = NUMPY_DTYPES[datatype]
    flat = flatten(values)
    if not set(map(type, flat)) <= _ELEMENT_TYPES[dtype.kind]:
        raise wrong_type("data", _BY_KIND[dtype.kind][1])
    return _to_array(flat, dtype, name)


def flatten(values: list[Any]) -> list[Any]:
    """The elements of nested lists in row-major order."""
    while any(isinstance(value, list) for value in values):
        values = list(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    return values


def numbers_as_json(tensor: Tensor) -> bytes:
    """A flat JSON list. NaN and infinities are written as Triton does: `NaN`, `Infinity`, `-Infinity`."""
    values = flat_array(tensor)
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:
        return ("[" + ",".join(map(_float_text, values.tolist())) + "]").encode()
    return text


def flat_array(tensor: Tensor) -> np.ndarray:
    assert isinstance(tensor.data, np.ndarray)
    return np.ascontiguousarray(tensor.data).reshape(-1)


def wrong_type(field: str, complaint: str) -> ServingError:
    return ServingError(Code.INVALID, f"Unable to parse '{field}': attempt to access JSON {complaint}", param=field)


def _float_text(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _to_array(values: list[Any], dtype: "np.dtype[Any]", name: str) -> np.ndarray:
    if dtype == np.float32:
        # beyond float32's range is infinity, as it is for Triton; numpy would warn, and silencing it costs 20 µs
        return np.frombuffer(array("f", values), dtype)
    try:
        return np.array(values, dtype=dtype)
    except OverflowError:
        if dtype.kind == "u" and min(values) < 0:
            raise wrong_type("data", _BY_KIND["u"][1]) from None
        info = np.iinfo(dtype)
        raise ServingError(
            Code.INVALID,
            f"Unable to parse 'data': input '{name}' has a value outside {info.min} to {info.max}, "
            f"what {dtype.name.upper()} can hold",
        ) from None


def _pieces(text: bytes) -> Iterator[bytes]:
    """`text`, a flat list, as consecutive shorter lists."""
    start, end = 1, len(text) - 1
    while start < end:
        cut = text.find(b",", start + _PIECE, end)
        stop = end if cut < 0 else cut
        yield b"[" + text[start:stop] + b"]"
        start = stop + 1
