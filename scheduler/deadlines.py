"""Things that are due at a time, of which most go away before it."""

import heapq
from collections.abc import Hashable
from itertools import count
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """A heap of (time, item), one entry an item. `discard` is O(1) and lets go of the item at once.

    What is discarded leaves an empty entry behind; they are swept when they outnumber the live ones.
    """

    def __init__(self) -> None:
        self._order = count()
        self._heap: list[tuple[float, int]] = []
        self._items: dict[int, T] = {}
        self._tickets: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def next(self) -> float:
        """The earliest time, inf when there is none."""
        heap = self._heap
        while heap and heap[0][1] not in self._items:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def add(self, time: float, item: T) -> None:
        ticket = next(self._order)
        self._items[ticket] = item
        self._tickets[item] = ticket
        heapq.heappush(self._heap, (time, ticket))

    def discard(self, item: T) -> None:
        ticket = self._tickets.pop(item, None)
        if ticket is None:
            return
        del self._items[ticket]
        if len(self._heap) > 2 * len(self._items) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._items]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> list[T]:
        """Take out every item whose time has come, the earliest first."""
        due = []
        while self.next <= now:
            _, ticket = heapq.heappop(self._heap)
            item = self._items.pop(ticket)
            del self._tickets[item]
            due.append(item)
        return due
