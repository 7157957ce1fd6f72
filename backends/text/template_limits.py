"""How much a chat template may do: a template is a program, and may come from strangers."""

import re
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import SecurityError

# Strings and lists made in one operation, and the parts of one printed value
_MAX_LENGTH = 16_000_000
_MAX_NODES = 100_000
# Widths, counts and precisions given to formatting functions
_MAX_WIDTH = 10_000
_MAX_BITS = 4_096
# Looking at the clock costs more than a step of most loops
_STEPS_BETWEEN_LOOKS = 16
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\*|\d{5,})")
_WIDE_BRACES = re.compile(r"\d{5,}|:[^{}]*\{")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """`cpu_seconds` is processor time of the rendering thread, so that a busy machine fails no honest template.
    `max_chars` bounds what is written, counting a loop's or macro's literal text each time it might be written."""

    cpu_seconds: float = 1.0
    max_chars: int = 256_000_000


class Budget:
    """What one rendering has left. Raises SecurityError where it has nothing."""

    __slots__ = ("_chars", "_deadline", "_limits", "_steps", "source_length")

    def __init__(self, limits: RenderLimits, source_length: int) -> None:
        self._limits = limits
        self.source_length = source_length
        self._deadline = time.thread_time() + limits.cpu_seconds
        self._chars = limits.max_chars
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps % _STEPS_BETWEEN_LOOKS == 0 and time.thread_time() > self._deadline:
            raise SecurityError(f"it ran for more than {self._limits.cpu_seconds:g} s")

    def write(self, num_chars: int) -> None:
        self._chars -= num_chars
        if self._chars < 0:
            raise SecurityError(f"it wrote more than {self._limits.max_chars} characters")


BUDGET: ContextVar[Budget] = ContextVar("template_budget")
"""Of the rendering that runs in this context. Set wherever template code may run, compiling included."""


def check_length(length: int) -> None:
    if length > _MAX_LENGTH:
        raise SecurityError(f"a value of {length} elements is too long")


def check_width(value: object) -> None:
    """For numbers that make text or lists of their size."""
    if isinstance(value, int) and abs(value) > _MAX_WIDTH:
        raise SecurityError(f"a width of {value} is too large")
    if isinstance(value, str):
        check_length(len(value) * _MAX_WIDTH // 100)


def check_printable(value: object) -> None:
    """Refuse values that look small and print large: lists that hold one another many times over."""
    if isinstance(value, str | int | float | bool) or value is None:
        return
    waiting, seen, length = [value], 0, 0
    while waiting:
        item = waiting.pop()
        seen += 1
        if isinstance(item, str):
            length += len(item)
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            waiting.extend(item)
        if seen + len(waiting) > _MAX_NODES:
            raise SecurityError("a printed value has too many parts")
    check_length(length)


def num_chars(value: object) -> int:
    """Of all the strings in lists and objects of JSON, keys among them."""
    waiting, length = [value], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            length += len(item)
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return length


def check_binary(operator: str, left: Any, right: Any) -> None:
    """Before `left operator right`: the result must be of a bearable size."""
    if operator == "+" and _is_sequence(left) and _is_sequence(right):
        check_length(len(left) + len(right))
    elif operator == "*" and (_is_sequence(left) or _is_sequence(right)):
        sequence, count = (left, right) if _is_sequence(left) else (right, left)
        check_length(len(sequence) * max(int(count), 0))
    elif operator == "*" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        check_percent_format(left, right)


def check_percent_format(text: str, values: object) -> None:
    if _WIDE_PERCENT.search(text):
        raise SecurityError("a format asks for too wide a field")
    check_printable(values)


def check_replace(text: str, old: str, new: str) -> None:
    check_length(len(text) + text.count(old) * len(new))


def checked_join(separator: str, items: Any) -> list[Any]:
    """`items` as a list whose joined length is bearable."""
    listed = list(items)
    for item in listed:
        check_printable(item)
    check_length(sum(len(item) if isinstance(item, str) else 1 for item in listed) + len(separator) * len(listed))
    return listed


def check_method(name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Before a string's method is called; returns the arguments to call it with."""
    if name == "join" and args:
        return (checked_join(text, args[0]), *args[1:])
    if name == "replace" and len(args) >= 2:
        check_replace(text, str(args[0]), str(args[1]))
    elif name in ("format", "format_map"):
        if _WIDE_BRACES.search(text):
            raise SecurityError("a format asks for too wide a field")
        check_printable([*args, *kwargs.values()])
    elif name in ("center", "ljust", "rjust", "zfill"):
        for value in args:
            check_width(value)
    return args


def _is_sequence(value: object) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def _check_bits(num_bits: int) -> None:
    if num_bits > _MAX_BITS:
        raise SecurityError("a number is too large")
