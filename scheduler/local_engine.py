"""A token engine in this process, on a thread of its own: for tests and tiny models."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from functools import partial

from backends.api.base import EngineLoad
from backends.api.errors import Code, ServingError
from backends.api.request import GenerateRequest
from scheduler.engine_observer import EngineObserver
from scheduler.engine_options import EngineOptions, check_request, check_together
from scheduler.frames import Commands, EngineLimits, NewRequest, StepFrame
from scheduler.open_requests import OpenRequests
from scheduler.stepped_engine import SteppedEngine

log = logging.getLogger(__name__)


class LocalEngine:
    """A `TokenEngine` over an engine. `generate` may be called from any thread.

    The lock guards the open requests and the commands; the engine itself belongs to the thread.
    """

    def __init__(self, engine: SteppedEngine, options: EngineOptions, observer: EngineObserver | None = None) -> None:
        self.limits: EngineLimits = engine.limits
        self._engine = engine
        self._open = OpenRequests(options, observer or EngineObserver())
        self._commands = Commands()
        self._wake = threading.Condition(threading.RLock())
        self._end: ServingError | None = None
        self._thread = threading.Thread(target=self._run, name="token-engine", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self._end is None

    @property
    def load(self) -> EngineLoad:
        return self._open.load

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Raises ServingError(INVALID) for requests that the queue can never hold at once."""
        check_together(requests, self._open.options)

    def generate(self, request: GenerateRequest) -> None:
        check_request(request, self.limits)
        with self._wake:
            if self._end is not None:
                raise ServingError(self._end.code, self._end.message)
            number = self._open.add(request)
            self._commands.add.append(NewRequest.of(number, request))
            self._wake.notify()
        request.stream.on_cancel(partial(self._cancel, number))

    def clear_cache(self) -> None:
        """No later request finds a block computed before now."""
        with self._wake:
            self._commands.clear_cache = True
            self._wake.notify()

    async def drain(self) -> None:
        drained = threading.Event()
        with self._wake:
            self._open.when_empty(drained.set)
        await asyncio.to_thread(drained.wait)

    async def close(self) -> None:
        self._stop(ServingError(Code.UNAVAILABLE, "the model is being unloaded"))
        await asyncio.to_thread(self._thread.join)

    def _cancel(self, number: int) -> None:
        with self._wake:
            if self._open.cancel(number):
                self._commands.abort.append(number)
                self._wake.notify()

    def _stop(self, error: ServingError) -> None:
        with self._wake:
            if self._end is None:
                self._end = error
            self._commands.close = True
            self._open.fail_all(self._end)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while not self._engine.apply(self._take_commands()):
                self._deliver(self._engine.step())
        except Exception as error:
            log.exception("the token engine ended")
            self._stop(ServingError(Code.INTERNAL, f"the token engine ended: {error}"))
        finally:
            self._engine.close()

    def _take_commands(self) -> Commands:
        with self._wake:
            while not self._commands and not self._engine.has_work:
                self._wake.wait()
            commands, self._commands = self._commands, Commands()
            return commands

    def _deliver(self, frame: StepFrame) -> None:
        with self._wake:
            self._open.deliver(frame)
