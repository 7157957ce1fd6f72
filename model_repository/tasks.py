"""Work that goes on when whoever asked for it has left."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from model_repository.texts import stopping


class Tasks:
    """Tasks of the event loop, of which none is lost and all can be stopped."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """`work` to its end even if the caller leaves. Raises UNAVAILABLE if `stop` ends it."""
        task = self.spawn(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise stopping() from None
            raise

    async def stop(self) -> None:
        """Cancel everything, and return when it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen here too, should the caller have left
