"""Asks a custom model's own `is_ready` when the server wants to know."""

import asyncio
import inspect
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from backends.python.frames import AskReady, Log, Ready
from backends.python.link import Link
from backends.python.packing import Unpacker


class Readiness:
    """On a thread of its own, as `execute` may be busy for long. A coroutine runs on the loop of `async def execute`."""

    def __init__(self, model: Any, link: Link, loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._model = model
        self._link = link
        self._loop = loop
        self._questions: deque[int] = deque()
        link.handlers[AskReady] = self._on_question
        threading.Thread(target=self._serve, name="is_ready", daemon=True).start()

    def _on_question(self, frame: AskReady, _: Unpacker) -> None:
        self._questions.append(frame.question)

    def _serve(self) -> None:
        while True:
            self._link.wait(lambda: bool(self._questions))
            question = self._questions.popleft()
            self._link.send(Ready(question, self._ask()))

    def _ask(self) -> bool:
        """A model that cannot say is not ready."""
        try:
            said = self._model.is_ready()
            if inspect.isawaitable(said):
                loop = self._loop()
                said = asyncio.run(_await(said)) if loop is None else _on(loop, said)
            if not isinstance(said, bool):
                raise TypeError(f"is_ready must return a bool, found {type(said).__name__}")
        except BaseException:  # the model's fault, and no reason to lose this thread
            self._link.send(Log(logging.ERROR, traceback.format_exc().rstrip()))
            return False
        return said


def _on(loop: asyncio.AbstractEventLoop, said: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(_await(said), loop).result()


async def _await(said: Any) -> Any:
    return await said
