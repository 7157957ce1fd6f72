"""A thread that calls back at given times, for what must not wait until somebody is free."""

import logging
import threading
import time
from collections.abc import Callable
from math import inf

from scheduler.deadlines import Deadlines

_LOG = logging.getLogger(__name__)

Callback = Callable[[], object]
_LONGEST_WAIT = (
    3600.0  # seconds; a deadline may lie farther ahead than a lock can wait, and looking again costs nothing
)


class Alarm:
    """Calls each callback once, at its time of `time.monotonic()`, on one thread started at first use.

    Callbacks must be short; one that raises is a fault of ours and does not stop the others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deadlines: Deadlines[Callback] = Deadlines()
        self._thread: threading.Thread | None = None

    def set(self, callback: Callback, when: float) -> None:
        """Call `callback` at `when`, instead of at the time it was set to before."""
        with self._changed:
            earliest = self._deadlines.next
            self._deadlines.discard(callback)
            self._deadlines.add(when, callback)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
                self._thread.start()
            elif when < earliest:
                self._changed.notify()

    def clear(self, callback: Callback) -> None:
        with self._changed:
            self._deadlines.discard(callback)

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._deadlines.pop_due(time.monotonic())
                if not due:
                    rest = self._deadlines.next - time.monotonic()
                    self._changed.wait(None if rest == inf else min(max(0.0, rest), _LONGEST_WAIT))
            for callback in due:
                try:
                    callback()
                except Exception:
                    _LOG.exception("a timer's callback failed")
