"""Which texts are computed next. Pure: rows and times in, a batch out."""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

STEP_SECONDS = 0.1  # a text that comes during a step waits no longer than this for the next
_MIN_TOKENS = 256  # fewer do not fill a processor
_PUT_OFF = 2.0  # times what the texts before it take: half of the time is left to others while there are any


class PoolingQueue(Generic[T]):
    """Texts that wait, the most urgent first.

    A text is due when it came, put off by twice the time that those before it in its own request take. So a request of a
    thousand texts lets the single ones of others pass, as if it had sent its own one by one; and it is passed by none
    that comes after its turn. Equal ones keep their order.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, T]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, text: T, *, priority: int, due: float) -> None:
        """A lower `priority` goes first, whatever is due."""
        heapq.heappush(self._heap, (priority, due, next(self._order), text))

    def first(self) -> T:
        return self._heap[0][3]

    def pop(self) -> T:
        return heapq.heappop(self._heap)[3]


def due_times(arrived: float, lengths: list[int], seconds_per_token: float) -> Iterator[float]:
    """When each text of a request is due."""
    for length in lengths:
        yield arrived
        arrived += _PUT_OFF * length * seconds_per_token


def token_budget(limit: int, seconds_per_token: float) -> int:
    """How many tokens a step may take: what is done in STEP_SECONDS, at most `limit`. 0 seconds: not known yet."""
    if seconds_per_token <= 0:
        return min(limit, _MIN_TOKENS)
    return min(limit, max(_MIN_TOKENS, int(STEP_SECONDS / seconds_per_token)))
