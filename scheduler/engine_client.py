"""A token engine in a child process that is started again when it ends."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from backends.api.base import EngineLoad
from backends.api.errors import Code, ServingError
from backends.api.request import GenerateRequest
from scheduler.engine_child import EngineChild, ended_error
from scheduler.engine_observer import EngineObserver
from scheduler.engine_options import check_request, check_together
from scheduler.engine_spec import EngineSpec
from scheduler.frames import Commands, EngineFrame, EngineLimits, Failure, NewRequest, Progress, StepFrame
from scheduler.open_requests import OpenRequests

log = logging.getLogger(__name__)


class EngineState(Enum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Waits between restarts, in seconds: doubled from `first` up to `longest`, anew after a life of `stable` seconds.

    A child that makes no step for `step_timeout` seconds while it has requests is taken for dead.
    """

    first: float = 0.25
    longest: float = 30.0
    stable: float = 60.0
    step_timeout: float = 120.0

    def delay(self, num_short_lives: int) -> float:
        """Before the next start, after so many short lives in a row."""
        return min(self.first * 2.0 ** min(max(num_short_lives - 1, 0), 32), self.longest)


class EngineClient:
    """A `TokenEngine` whose engine runs in a child process. Lives on one loop; streams may be cancelled from any thread."""

    def __init__(
        self,
        spec: EngineSpec,
        observer: EngineObserver | None = None,
        *,
        restart: RestartPolicy | None = None,
    ) -> None:
        self.spec = spec
        self.limits: EngineLimits | None = None
        self.state = EngineState.STARTING
        self._reason = "the engine is starting"
        self._restart = restart or RestartPolicy()
        self._observer = observer or EngineObserver()
        self._open = OpenRequests(spec.options, self._observer)
        self._commands = Commands([], [])
        self._child: EngineChild | None = None
        self._launched: asyncio.Future[EngineLimits] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._last_progress = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0

    async def start(self) -> None:
        """Return when the engine is ready. Raises the ServingError of a load that failed; then nothing is left running."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        await self._launch()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"engine of {self.spec.model_name}")

    @property
    def is_ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def load(self) -> EngineLoad:
        return self._open.load

    @property
    def pid(self) -> int | None:
        """Of the child, None while there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def seconds_without_step(self) -> float:
        """How long requests have been open without a step: what liveness is judged by. 0.0 while none is open."""
        return self._loop.time() - self._last_progress if len(self._open) else 0.0

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        """Raises ServingError(INVALID) for requests that the queue can never hold at once."""
        check_together(requests, self._open.options)

    def generate(self, request: GenerateRequest) -> None:
        if not self.is_ready or self.limits is None:
            raise ServingError(
                Code.UNAVAILABLE, f"model '{self.spec.model_name}' is not ready: {self._reason}", retry_after=1.0
            )
        check_request(request, self.limits)
        if not len(self._open):
            self._last_progress = self._loop.time()
        number = self._open.add(request)
        self._queue_command()
        self._commands.add.append(NewRequest.of(number, request))
        self._arm_watch()
        request.stream.on_cancel(partial(self._cancel, number))

    def clear_cache(self) -> None:
        """No later request finds a block computed before now."""
        self._queue_command()
        self._commands.clear_cache = True

    async def drain(self) -> None:
        drained = asyncio.Event()
        self._open.when_empty(drained.set)
        await drained.wait()

    async def close(self) -> None:
        """Also while it is starting: `start` then raises."""
        was_ready = self.state is EngineState.READY
        self._set_state(EngineState.CLOSED, "it is being unloaded")
        self._open.fail_all(ServingError(Code.UNAVAILABLE, "the model is being unloaded"))
        if self._watch is not None:
            self._watch.cancel()
        if self._child is not None and was_ready:
            await self._child.close()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._child is not None:  # it was still loading
            self._child.kill()
            await self._child.ended

    # Commands: all of one turn of the loop go in one frame.

    def _queue_command(self) -> None:
        if not self._commands:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        commands, self._commands = self._commands, Commands([], [])
        if self._child is not None and commands:
            self._child.send(commands)

    def _cancel(self, number: int) -> None:
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._cancel, number)
            return
        if self._open.cancel(number):
            self._queue_command()
            self._commands.abort.append(number)

    # Frames

    def _on_frame(self, frame: EngineFrame) -> None:
        match frame:
            case StepFrame():
                self._last_progress = self._loop.time()
                self._open.deliver(frame)
            case EngineLimits():
                self._settle(frame)
            case Progress():
                self._observer.progress(frame.what, frame.done, frame.total)
            case Failure():
                self._settle(frame.error())

    def _on_ended(self, ended: asyncio.Task[str]) -> None:
        if not ended.cancelled():
            self._settle(ended_error(ended.result()))

    def _settle(self, outcome: EngineLimits | ServingError) -> None:
        """The load has ended, one way or another; the first word counts."""
        launched = self._launched
        if launched is None or launched.done():
            return
        if isinstance(outcome, ServingError):
            launched.set_exception(outcome)
        else:
            launched.set_result(outcome)

    # The child's lives

    async def _launch(self) -> None:
        """One start up to READY. Raises ServingError; then the child is gone."""
        launched = self._launched = self._loop.create_future()
        child = self._child = await EngineChild.spawn(self.spec, self._on_frame)
        child.ended.add_done_callback(self._on_ended)
        if self.state is EngineState.CLOSED:  # while the process was being made
            self._settle(ServingError(Code.UNAVAILABLE, self._reason))
        try:
            self.limits = await launched
        except BaseException:
            child.kill()
            self._child = None
            await asyncio.shield(child.ended)
            raise
        self._set_state(EngineState.READY, "")

    async def _supervise(self) -> None:
        num_short_lives = 0
        while self._child is not None:
            born = self._loop.time()
            reason = await asyncio.shield(self._child.ended)
            self._child = None
            if self.state is EngineState.CLOSED:
                return
            self._set_state(EngineState.RESTARTING, reason)
            self._commands = Commands([], [])
            self._open.fail_all(ended_error(reason))
            num_short_lives = 0 if self._loop.time() - born > self._restart.stable else num_short_lives
            while self._child is None:
                num_short_lives += 1
                await asyncio.sleep(self._restart.delay(num_short_lives))
                await self._try_launch()

    async def _try_launch(self) -> None:
        try:
            await self._launch()
        except ServingError as error:
            self._set_state(EngineState.RESTARTING, error.message)

    def _set_state(self, state: EngineState, reason: str) -> None:
        if self.state is EngineState.CLOSED:
            return
        self.state, self._reason = state, reason
        log.info("engine of '%s' is %s%s", self.spec.model_name, state.value, f": {reason}" if reason else "")
        self._observer.state(state.value, reason)

    # A child that hangs

    def _arm_watch(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(self._restart.step_timeout / 4, self._check_progress)

    def _check_progress(self) -> None:
        self._watch = None
        if not len(self._open):
            return
        if self.seconds_without_step > self._restart.step_timeout and self._child is not None:
            log.error("engine of '%s' made no step for %.0f s", self.spec.model_name, self.seconds_without_step)
            self._child.kill()
        self._arm_watch()
