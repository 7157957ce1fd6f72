"""Where an instance waits for work."""

import time
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.python.instance import PythonInstance


class PollingGate:
    """Where an instance waits for work. A thread that waits hears meanwhile what the process has to say."""

    def __init__(self, instance: "PythonInstance") -> None:
        self._instance = instance
        self._is_open = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            until = time.monotonic() + timeout if timeout >= 0 else inf
            self._instance.poll_until(lambda: self._is_open or time.monotonic() >= until, until)
        opened, self._is_open = self._is_open, False
        return opened

    def release(self) -> None:
        self._is_open = True
        self._instance.mailbox.wake()
