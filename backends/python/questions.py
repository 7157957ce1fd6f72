"""Whether a model is ready by its own `is_ready`, which is asked in its process."""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from backends.python.frames import AskReady, Ready
from backends.python.packing import Unpacker


class Questions:
    """Those that the process has not answered. Used by whoever does the instance's business."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._send = send
        self._open: dict[int, Future[bool]] = {}
        self._numbers = count(1)

    def ask(self, answer: "Future[bool]") -> None:
        number = next(self._numbers)
        self._open[number] = answer
        self._send(AskReady(number))

    def on_ready(self, frame: Ready, _: Unpacker) -> None:
        answer = self._open.pop(frame.question, None)
        if answer is not None:
            tell(answer, frame.is_ready)

    def drop(self) -> None:
        """The process is gone: it is not ready."""
        questions, self._open = self._open, {}
        for answer in questions.values():
            tell(answer, False)


def tell(answer: "Future[bool]", value: bool) -> None:
    if answer.set_running_or_notify_cancel():  # else nobody waits any more
        answer.set_result(value)
