"""Stop strings, found in the text wherever tokens cut it."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string, holding back only what may still become one.

    The match that is complete first wins; of several that are complete at the same character, the one first in the
    list. Held is the longest end of the text that is the beginning of a stop string, and no more.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """`stops` without empty strings. With `include_stop` the text ends with the stop string, not before it."""
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include_stop
        self._held = ""
        self.matched: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to look for: all text leaves as it comes."""
        return not self._stops

    def push(self, text: str, may_stop: bool = True) -> str:
        """What of the text so far may leave now. Sets `matched` when a stop string is complete: then this is the last.

        With `may_stop` False what is completed by `text` passes (min_tokens); what it only begins may match later.
        """
        if not self._stops or self.matched is not None:
            return "" if self.matched is not None else text
        start = len(self._held)
        text = self._held + text
        if may_stop and (found := self._find(text, start)) is not None:
            self._held = ""
            end, self.matched = found
            return text[: end if self._include else end - len(self.matched)]
        cut = len(text) - self._num_held(text)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """What is still held, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, start: int) -> tuple[int, str] | None:
        """The end of the first match that ends after `start`, and its stop string."""
        best: tuple[int, str] | None = None
        for stop in self._stops:
            place = text.find(stop, max(0, start - len(stop) + 1))
            if place >= 0 and (best is None or place + len(stop) < best[0]):
                best = place + len(stop), stop
        return best

    def _num_held(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string without being it."""
        held = 0
        for stop in self._stops:
            place = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while place >= 0 and len(text) - place > held:
                if stop.startswith(text[place:]):
                    held = len(text) - place
                    break
                place = text.find(stop[0], place + 1)
        return held
