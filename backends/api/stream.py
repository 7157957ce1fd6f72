"""What a request's answers travel on."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar

from backends.api.errors import Code, ServingError
from backends.api.wakes import JoinedWakes, LoopWake

T = TypeVar("T")
_FINISHED = object()


class ResponseStream(Generic[T]):
    """One writer, one reader, of which each may live on its own thread.

    Ends exactly once, by `finish`, `fail` or `cancel`; what is put after that is dropped. Items put
    before `finish` or `fail` are still read; `cancel`, which the reader's side calls, drops them.
    The writer sees it as `cancelled` and through `on_cancel`.

    Read it with `async for`, with `await stream.take()` (all that is there: for readers that merge
    what a slow client left waiting), or from a plain thread with `get`.
    """

    __slots__ = ("_cancel_callbacks", "_end", "_items", "_lock", "_wake", "satisfied")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._end: object = None  # None while open, then _FINISHED or a ServingError
        self._wake: Callable[[], object] | None = None
        self._cancel_callbacks: list[Callable[[], object]] = []
        self.satisfied = False  # cancelled because the reader has all it wants, which is a good end

    # The writer's side

    def put(self, item: T) -> None:
        with self._lock:
            if self._end is not None:
                return
            self._items.append(item)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def finish(self, item: T | None = None) -> None:
        """End well, with `item` as the last answer when one is given."""
        self._close(_FINISHED, item)

    def fail(self, error: ServingError) -> None:
        self._close(error, None)

    @property
    def cancelled(self) -> bool:
        return isinstance(self._end, ServingError) and self._end.code is Code.CANCELLED

    @property
    def ended(self) -> bool:
        return self._end is not None

    @property
    def num_waiting(self) -> int:
        """Items put and not yet read: what a writer watches to hold back for a slow reader."""
        return len(self._items)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the reader cancels, on the reader's thread; at once if it already has."""
        with self._lock:
            if self._end is None:
                self._cancel_callbacks.append(callback)
                return
            was_cancelled = self.cancelled
        if was_cancelled:
            callback()

    # The reader's side

    def cancel(self, reason: str = "the request was cancelled", *, satisfied: bool = False) -> None:
        """The reader leaves: drop what is unread and tell the writer. Nothing if the stream has ended.

        `satisfied`: it has all it wants, as when it finds a stop string, so the request has ended well.
        """
        with self._lock:
            if self._end is not None:
                return
            self.satisfied = satisfied
            self._end = ServingError(Code.CANCELLED, reason)
            self._items.clear()
            callbacks, self._cancel_callbacks = self._cancel_callbacks, []
            wake, self._wake = self._wake, None
        for callback in callbacks:
            callback()
        if wake is not None:
            wake()

    def __aiter__(self) -> "ResponseStream[T]":
        return self

    async def __anext__(self) -> T:
        """The next item. Raises StopAsyncIteration at a good end, the ServingError of a bad one."""
        while True:
            waiter = self._waiter()
            if waiter is not None:
                await waiter
                continue
            if self._items:
                return self._items.popleft()
            if isinstance(self._end, ServingError):
                raise self._end
            raise StopAsyncIteration

    async def take(self) -> list[T]:
        """Every item that is there, waiting for one if there is none; [] at a good end.

        Raises the ServingError of a bad end, after the items before it were taken.
        """
        while True:
            waiter = self._waiter()
            if waiter is None:
                return self.poll()
            await waiter

    def get(self, timeout: float | None = None) -> T | None:
        """The next item, for a reader on a plain thread; None at a good end.

        Raises the ServingError of a bad end, and TimeoutError after `timeout` seconds.
        """
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                if isinstance(self._end, ServingError):
                    raise self._end
                if self._end is not None:
                    return None
                # a bare lock, released by the writer: an Event is three of them
                gate = threading.Lock()
                gate.acquire()
                self._wake = gate.release
            if not gate.acquire(timeout=-1 if timeout is None else timeout):
                raise TimeoutError(f"no answer within {timeout} s")

    def poll(self) -> list[T]:
        """Every item that is there now; never waits. Look at `ended` before: [] then is the end.

        Raises the ServingError of a bad end, after the items before it were taken.
        """
        with self._lock:
            items = list(self._items)
            self._items.clear()
            if not items and isinstance(self._end, ServingError):
                raise self._end
            return items

    def notify(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, when there is an item or the end to read: at once, or on the writer's thread.

        For a reader of many streams, with `poll`; in place of any other wait.
        """
        with self._lock:
            if not self._items and self._end is None:
                self._wake = callback
                return
        callback()

    def notify_on_loop(self, callback: Callable[[], object]) -> None:
        """`notify` for a reader on the running event loop, where `callback` is called; it must not raise."""
        self.notify(LoopWake(callback))

    def _close(self, end: object, item: T | None) -> None:
        with self._lock:
            if self._end is not None:
                return
            if item is not None:
                self._items.append(item)
            self._end = end
            self._cancel_callbacks.clear()
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _waiter(self) -> "asyncio.Future[None] | None":
        """A future that the writer's next act completes, or None when there is something to read now."""
        with self._lock:
            if self._items or self._end is not None:
                return None
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._wake = LoopWake(partial(_complete, future))
            return future


def finish_all(answers: Iterable[tuple[ResponseStream[T], T]]) -> None:
    """`finish` for each, with readers on event loops woken together: once a batch, not a request."""
    with JoinedWakes():
        for stream, item in answers:
            stream.finish(item)


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
