"""How far a model may run ahead of those who read its responses."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from backends.api.request import InferenceResponse
from backends.api.stream import ResponseStream

_SLOW_READER = 0.005  # seconds between two looks at whether a slow reader has made room


@dataclass(slots=True)
class _Window:
    stream: ResponseStream[InferenceResponse]
    credits: int  # responses that the model may still send


class Windows:
    """The credits of an instance's decoupled requests, by number: a stream that nobody reads holds `size` responses at most.

    Half a window later the model needs leave to send more, and has it unless the reader lags behind by as much.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._windows: dict[int, _Window] = {}
        self._slow: set[int] = set()

    def open(self, number: int, stream: ResponseStream[InferenceResponse]) -> int:
        """The credits that a request begins with."""
        # one that is executed again may have responses that nobody has read yet
        window = _Window(stream, max(0, self._size - stream.num_waiting))
        self._windows[number] = window
        if not window.credits:
            self._slow.add(number)
        return window.credits

    def spend(self, number: int) -> int:
        """A response has come; the credits to grant now."""
        window = self._windows[number]
        window.credits -= 1
        return self._refill(number, window) if window.credits <= self._size // 2 else 0

    def close(self, number: int) -> None:
        self._windows.pop(number, None)
        self._slow.discard(number)

    def clear(self) -> None:
        self._windows.clear()
        self._slow.clear()

    def look(self) -> Iterator[tuple[int, int]]:
        """Credits to grant, by request, to those whose readers have caught up."""
        for number in list(self._slow):
            count = self._refill(number, self._windows[number])
            if count:
                yield number, count

    @property
    def next_look(self) -> float:
        return time.monotonic() + _SLOW_READER if self._slow else inf

    def _refill(self, number: int, window: _Window) -> int:
        if window.stream.num_waiting > self._size // 2:
            self._slow.add(number)
            return 0
        self._slow.discard(number)
        count = self._size - window.credits
        window.credits += count
        return count
