"""An instance's business on the event loop, which brings its requests and takes their answers."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from backends.python.packing import Unpacker
from backends.python.process import ModelProcess

if TYPE_CHECKING:
    from backends.python.instance import PythonInstance

Serve = Callable[[], float | None]
"""Begins what can begin; when to ask again without news, in seconds of `time.monotonic()`, or None for never more."""


class Helm:
    """Steers an instance on `loop` while the instance's thread waits in `run`; that has the helm back for what blocks.

    With a thread between the loop and the process a quick model answers 0.83 to 0.9 of the HTTP requests at 16 clients:
    both wait for Python's lock. Whoever does not have the helm touches nothing of the instance but its mailbox.
    """

    def __init__(self, instance: "PythonInstance", loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        self._instance = instance
        self._loop = loop
        self._serve = serve
        # what the thread is to do, None at the end
        self._returned: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._aside: Callable[[], None] | None = None  # this, once the loop has done what it is at
        self._loop_thread = 0
        self._is_held = False  # by the loop
        self._is_due = False
        self._watched: ModelProcess | None = None
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timed = inf  # when the timer goes off

    # On the instance's thread

    def run(self) -> None:
        """Return once `serve` has nothing more to do."""
        self._loop.call_soon_threadsafe(self._take)
        while (act := self._returned.get()) is not None:
            act()
            self._loop.call_soon_threadsafe(self._take)

    # On any thread

    def _wake(self) -> None:
        """There is a note, or work."""
        if threading.get_ident() != self._loop_thread:
            with suppress(RuntimeError):  # the loop has closed, and everything with it
                self._loop.call_soon_threadsafe(self._turn)
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._turn)

    # On the loop

    def aside(self, act: Callable[[], None]) -> None:
        """Have the thread do what takes long; `serve` asks for it, and begins nothing more before it is called again."""
        self._aside = act

    def _take(self) -> None:
        self._is_held = True
        self._loop_thread = threading.get_ident()
        self._instance.mailbox.waker = self._wake
        self._watched = process = self._instance.process
        if process is not None:
            self._loop.add_reader(process.socket, self._read)
            self._loop.add_reader(process.printed, self._read_printed)
        self._turn()

    def _turn(self) -> None:
        """What was left to do, and what has come meanwhile that makes no event."""
        self._is_due = False
        if self._is_held:
            self._act(list)

    def _read(self) -> None:
        assert self._watched is not None
        self._act(self._watched.receive)

    def _read_printed(self) -> None:
        assert self._watched is not None
        if not self._watched.log_lines():
            self._loop.remove_reader(self._watched.printed)

    def _write(self) -> None:
        assert self._watched is not None
        self._watched.flush()
        self._watch_writing()

    def _act(self, receive: Callable[[], list[tuple[Any, Unpacker]]]) -> None:
        try:
            self._instance.act(receive())
            due = self._serve()
        except Exception as error:
            self._give_back(partial(self._instance.recover, error))
            return
        if due is None or self._aside is not None:
            act, self._aside = self._aside, None
            self._give_back(act)
            return
        self._watch_writing()
        self._set_timer(min(due, self._instance.next_look))

    def _watch_writing(self) -> None:
        process = self._watched
        if process is None or process.has_unsent == self._is_writing:
            return
        self._is_writing = process.has_unsent
        if self._is_writing:
            self._loop.add_writer(process.socket, self._write)
        else:
            self._loop.remove_writer(process.socket)

    def _set_timer(self, when: float) -> None:
        """Take a turn at `when` or before."""
        if when < self._timed:
            self._clear_timer()
            self._timed = when
            self._timer = self._loop.call_later(max(0.0, when - time.monotonic()), self._on_time)

    def _clear_timer(self) -> None:
        self._timed = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._clear_timer()
        self._turn()

    def _give_back(self, act: Callable[[], None] | None) -> None:
        process, self._watched = self._watched, None
        if process is not None:
            self._loop.remove_reader(process.socket)
            self._loop.remove_reader(process.printed)
            if self._is_writing:
                self._loop.remove_writer(process.socket)
        self._is_writing = self._is_held = False
        self._clear_timer()
        self._instance.mailbox.waker = None
        self._returned.put(act)
