"""Answers leave in the order in which their requests were queued (`preserve_ordering`)."""

import threading
from collections import deque
from collections.abc import Callable, Hashable

Act = Callable[[], object]


class OrderedDelivery:
    """Holds each ending back until all those before it have happened.

    Every ticket that is `expect`ed must come to `deliver` once, or what follows it would never leave.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._order: deque[Hashable] = deque()
        self._ready: dict[Hashable, Act] = {}

    def expect(self, ticket: Hashable) -> None:
        with self._lock:
            self._order.append(ticket)

    def deliver(self, ticket: Hashable, act: Act) -> None:
        """Call `act`, and what waited for it, in order; or keep it for later."""
        with self._lock:  # held while acting: two threads must not overtake each other
            self._ready[ticket] = act
            while self._order and self._order[0] in self._ready:
                self._ready.pop(self._order.popleft())()
