"""What a model thinks before it answers, told apart from its answer."""

import json
import re
from dataclasses import dataclass
from enum import Enum

from backends.api.request import Grammar


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    start: str
    end: str


_KNOWN = (
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<reasoning>", "</reasoning>"),
)


def reasoning_tags(template: str) -> ReasoningTags | None:
    """The tags that a chat template speaks of; None for a model that does not think aloud."""
    return next((tags for tags in _KNOWN if tags.start in template or tags.end in template), None)


def behind_reasoning(grammar: Grammar, tags: ReasoningTags) -> Grammar:
    """`grammar` for what follows the end tag, anything before it. For an answer that begins within the reasoning."""
    if grammar.kind == "json_schema":
        rules = f"answer: %json {grammar.text}"
    elif grammar.kind == "regex":
        pattern = grammar.text.replace("/", "\\/")
        rules = f"answer: /{pattern}/"
    else:
        rules = re.sub(r"^start(?=\s*:)", "answer", grammar.text, flags=re.MULTILINE)
    return Grammar("lark", f"start: reasoning answer\nreasoning[suffix={json.dumps(tags.end)}]: /(.|\\n)*/\n{rules}")


class _Place(Enum):
    START = "start"  # nothing but white space was said: the start tag may still come
    INSIDE = "inside"
    GAP = "gap"  # behind the end tag, where empty lines belong to neither side
    ANSWER = "answer"


class ReasoningSplitter:
    """Takes the text of one choice in pieces. Only an answer that begins with the start tag begins with reasoning, or
    one whose prompt has given the tag already (`inside`)."""

    __slots__ = ("_held", "_place", "_tags")

    def __init__(self, tags: ReasoningTags, inside: bool) -> None:
        self._tags = tags
        self._held = ""
        self._place = _Place.INSIDE if inside else _Place.START

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text belongs to the reasoning, as far as one can tell; its start tag counts with it."""
        return self._place is _Place.INSIDE or (self._place is _Place.START and bool(self._held.strip()))

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, answer)"""
        self._held += text
        if self._place is _Place.START:
            self._begin()
        reasoning = self._think() if self._place is _Place.INSIDE else ""
        if self._place is _Place.GAP and self._held.strip():
            self._held = self._held.lstrip("\n")
            self._place = _Place.ANSWER
        if self._place is not _Place.ANSWER:
            return reasoning, ""
        answer, self._held = self._held, ""
        return reasoning, answer

    def flush(self) -> tuple[str, str]:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        if self._place is _Place.INSIDE:
            return held, ""
        return "", "" if self._place is _Place.GAP else held

    def _begin(self) -> None:
        said, start = self._held.lstrip(), self._tags.start
        if said.startswith(start):
            self._place = _Place.INSIDE
            self._held = said[len(start) :]
        elif said and not start.startswith(said):
            self._place = _Place.ANSWER

    def _think(self) -> str:
        end = self._tags.end
        place = self._held.find(end)
        if place >= 0:
            reasoning, self._held = self._held[:place], self._held[place + len(end) :]
            self._place = _Place.GAP
            return reasoning
        cut = len(self._held) - num_begun(self._held, end)
        reasoning, self._held = self._held[:cut], self._held[cut:]
        return reasoning


def num_begun(text: str, tag: str) -> int:
    """The length of the longest end of `text` that begins `tag` without being it."""
    longest = min(len(tag) - 1, len(text))
    return next((length for length in range(longest, 0, -1) if text.endswith(tag[:length])), 0)
