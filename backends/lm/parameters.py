"""A model's `parameters`, which are text, read as what they mean: a bad one is named, with what was expected and what came."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from backends.api.errors import Code, ServingError

Parser = Callable[[str], Any]
"""Raises RejectedError with what was expected."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class RejectedError(Exception):
    """Carries what was expected."""


def read(parsers: Mapping[str, Parser], parameters: Mapping[str, str], model_name: str) -> dict[str, Any]:
    """The values of those `parameters` that have a parser. Raises ServingError(INVALID)."""
    values: dict[str, Any] = {}
    for name in parsers:
        if name not in parameters:
            continue
        try:
            values[name] = parsers[name](parameters[name].strip())
        except RejectedError as refused:
            raise rejected(model_name, name, str(refused), repr(parameters[name])) from None
    return values


def rejected(model_name: str, name: str, expected: str, got: str, code: Code = Code.INVALID) -> ServingError:
    return ServingError(code, f"model '{model_name}': parameter '{name}': expected {expected}, got {got}", param=name)


def whole(low: int, high: int) -> Parser:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,19}", text) or not low <= int(text) <= high:
            raise RejectedError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def number(low: float, high: float) -> Parser:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise RejectedError(f"a number from {low:g} to {high:g}")
        return value

    return parse


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise RejectedError("a number above 0, up to 1")
    return value


def one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise RejectedError(f"one of {', '.join(choices)}")
        return text

    return parse


def flag(text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise RejectedError("true or false")
    return known[text.lower()]


def size(text: str) -> int:
    """Bytes: K, M, G, T are powers of 1024, k, m, g, t of 1000, as in vLLM."""
    match = _SIZE.fullmatch(text)
    found = int(float(match[1]) * _SCALE[match[2]]) if match else 0
    if not 1 << 16 <= found <= 1 << 50:
        raise RejectedError("a number of bytes of at least 65536, such as 1073741824 or 1G")
    return found


def text(expected: str) -> Parser:
    def parse(given: str) -> str:
        if not given:
            raise RejectedError(expected)
        return given

    return parse
