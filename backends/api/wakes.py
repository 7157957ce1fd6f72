"""How those who read on an event loop are woken: by anyone, from any thread, one by one or together."""

import asyncio
import threading
from collections.abc import Callable, Sequence


class LoopWake:
    """When called, has `callback` called on the event loop on which this was made. Any number of times, from any thread.

    At once if that is the calling thread's loop. With `JoinedWakes` it waits for their end. `callback` must not raise.
    """

    __slots__ = ("_thread", "callback", "loop")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.loop = asyncio.get_running_loop()
        self.callback = callback
        self._thread = threading.get_ident()

    @property
    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def __call__(self) -> None:
        if _gathered.wakes is not None:
            _gathered.wakes.append(self)
        elif self.is_here:
            self.callback()
        else:
            _call_on(self.loop, [self.callback])


class JoinedWakes:
    """A context in which a thread's `LoopWake`s are gathered, and go out together at its end: one call for a loop.

    Within another one, it leaves them to that.
    """

    def __enter__(self) -> None:
        self._is_inner = _gathered.wakes is not None
        if not self._is_inner:
            _gathered.wakes = []

    def __exit__(self, *_: object) -> None:
        if self._is_inner:
            return
        wakes, _gathered.wakes = _gathered.wakes, None
        sleeping: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}
        for wake in wakes or ():
            if wake.is_here:
                wake.callback()
            else:
                sleeping.setdefault(wake.loop, []).append(wake.callback)
        for loop, callbacks in sleeping.items():
            _call_on(loop, callbacks)


class _Gathered(threading.local):
    wakes: list[LoopWake] | None = None


_gathered = _Gathered()


def _call_on(loop: asyncio.AbstractEventLoop, callbacks: Sequence[Callable[[], object]]) -> None:
    try:
        loop.call_soon_threadsafe(_call_all, callbacks)
    except RuntimeError:
        return  # the readers' loop has closed: nobody is left to wake


def _call_all(callbacks: Sequence[Callable[[], object]]) -> None:
    for callback in callbacks:
        callback()
