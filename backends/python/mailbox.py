"""What others leave for whoever does an instance's business to do."""

import os
import threading
from collections import deque
from collections.abc import Callable


class Mailbox:
    """Notes for the one thread that waits for `fd`, an eventfd, and then does what they say.

    While there is a `waker`, that is called in place of the eventfd, on the thread that posts.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._notes: deque[Callable[[], None]] = deque()
        self.waker: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    # On any thread

    def post(self, act: Callable[[], None]) -> None:
        """Have `act` done on the mailbox's thread, soon."""
        self._notes.append(act)
        self.wake()

    def wake(self) -> None:
        waker = self.waker
        if waker is not None:
            waker()
            return
        with self._lock:  # a closed descriptor's number is soon somebody else's
            if not self._is_closed:
                os.eventfd_write(self.fd, 1)

    # On the mailbox's thread

    @property
    def has_notes(self) -> bool:
        return bool(self._notes)

    def settle(self) -> None:
        """Do what has been posted."""
        while self._notes:
            self._notes.popleft()()

    def close(self) -> None:
        """Notes that come later stay undone."""
        with self._lock:
            self._is_closed = True
            os.close(self.fd)
