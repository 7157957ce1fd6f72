"""One instance of a custom model on the server's side: hands batches to its process and keeps that alive."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Any

from backends.api.base import Placement, RequestBatch
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest
from backends.api.wakes import JoinedWakes
from backends.python.calls import Calls
from backends.python.exchange import Exchange
from backends.python.frames import (
    Answers,
    Call,
    CancelCall,
    Control,
    Executed,
    Finalize,
    Finalized,
    Grant,
    Initialized,
    Log,
    Measure,
    Ready,
    Register,
    Response,
)
from backends.python.gate import PollingGate
from backends.python.helm import Helm, Serve
from backends.python.mailbox import Mailbox
from backends.python.options import PythonOptions
from backends.python.packing import Packer, Unpacker
from backends.python.process import ModelProcess, ProcessEndedError
from backends.python.questions import Questions, tell
from backends.python.runs import Run
from backends.python.supervisor import Supervisor

_LOG = logging.getLogger("tidegate.model")


class PythonInstance:
    """A `RequestInstance`. Everything happens on its thread, or while that waits in `serve_on` on the event loop; others
    only leave a note in the mailbox.

    `start` brings up a process ready to execute, or raises ServingError.
    """

    def __init__(
        self,
        placement: Placement,
        config: ModelConfig,
        version: str,
        options: PythonOptions,
        start: Callable[["PythonInstance"], tuple[ModelProcess, Initialized]],
        calls: Calls,
        supervisor: Supervisor,
    ) -> None:
        self.placement = placement
        self.mailbox = Mailbox()
        self.gate = PollingGate(self)
        self.model = config.name
        self._options = options
        self._start = start
        self._calls = calls
        self._supervisor = supervisor
        self._is_stateful = config.sequence_batching is not None
        self._exchange = Exchange(
            config, version, options, self.packer, self.send, self.mailbox.post, calls.request_ended
        )
        self._questions = Questions(self.send)
        self._handlers: dict[type, Callable[[Any, Unpacker], None]] = {
            Answers: self._exchange.on_answers,
            Executed: self._exchange.on_executed,
            Response: self._exchange.on_response,
            Ready: self._questions.on_ready,
            Log: self._on_log,
            Finalized: self._on_finalized,
            **dict.fromkeys((Call, CancelCall, Grant, Control, Register, Measure), partial(calls.handle, self)),
        }
        self._born = 0.0
        self._finalized = False
        self._process: ModelProcess | None = None
        self._abilities = Initialized(False, False)
        self._is_kept = False
        self._helm: Helm | None = None
        try:
            self._come_up(*start(self))
        except BaseException:
            self.mailbox.close()
            raise

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def num_open(self) -> int:
        return self._exchange.num_open

    # RequestInstance

    def keep_alive(self) -> None:
        self._is_kept = True
        self._supervisor.started(self)

    @property
    def num_ahead(self) -> int:
        return 0 if self._abilities.is_async or self._is_stateful else self._exchange.num_ahead

    @property
    def is_free(self) -> bool:
        # not earlier: what it took then could be a call that a run of its own makes, behind which it would wait for ever
        return self._exchange.num_executing < self._limit

    def begin(self, batches: Sequence[RequestBatch]) -> None:
        if self._process is None:
            for batch in batches:
                batch.fail_all(self._unhealthy())
            return
        self._exchange.begin(batches)

    def wait_until_free(self) -> None:
        self.poll_until(lambda: self.is_free)

    def serve_on(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        self._helm = Helm(self, loop, serve)
        self._helm.run()

    def aside(self, act: Callable[[], None]) -> None:
        assert self._helm is not None
        self._helm.aside(act)

    def drain(self) -> None:
        self.poll_until(lambda: not self._exchange.num_open and not self._exchange.num_executing)

    def close(self) -> None:
        process = self._process
        grace = self._options.finalize_timeout_secs or inf
        if process is not None:
            process.send(Finalize())
            end = time.monotonic() + grace
            self.poll_until(lambda: self._finalized or self._process is None or time.monotonic() >= end, end)
        if self._process is not None:
            self._process.end(grace if self._finalized else 0.0)
            self._process = None
        self._exchange.give_up(self._unhealthy())
        self._calls.close(self)
        self._supervisor.left(self)
        self._questions.drop()
        self.mailbox.close()

    # On any thread

    @property
    def executing(self) -> list[Run]:
        """Batches in `execute`, as of this moment."""
        return self._exchange.executing

    @property
    def runs(self) -> list[Run]:
        """These, and the batches that wait in the process for them."""
        return self._exchange.runs

    @property
    def has_room(self) -> bool:
        """Whether another batch could begin now."""
        return len(self.executing) < self._limit

    def ask_ready(self) -> "Future[bool]":
        """What the model's own `is_ready` says; True where it has none, False when its process ends meanwhile."""
        answer: Future[bool] = Future()
        self.mailbox.post(partial(self._ask_ready, answer))
        return answer

    # Whoever has the helm

    @property
    def process(self) -> ModelProcess | None:
        return self._process

    @property
    def next_look(self) -> float:
        """When to `act` at the latest, in seconds of `time.monotonic()`."""
        return self._exchange.next_look

    @property
    def _limit(self) -> int:
        """Batches in `execute` at a time. One for a stateful model: a sequence's next request builds on its last."""
        return self._options.max_concurrency if self._abilities.is_async and not self._is_stateful else 1

    def send(self, frame: tuple[Any, ...], pack: Any = None) -> None:
        if self._process is not None:
            self._process.send(frame, pack)

    def packer(self) -> Packer:
        assert self._process is not None
        return self._process.packer()

    def requests_of(self, run: int) -> list[InferenceRequest]:
        """The requests of a batch, for calls made on their behalf."""
        return self._exchange.requests_of(run)

    def poll_until(self, done: Callable[[], bool], until: float = inf) -> None:
        """Do what there is to do until `done`; `until` is when to look again at the latest."""
        while not done():
            self._step(min(until, self._exchange.next_look))

    def _step(self, until: float) -> None:
        if self._process is None:
            self._wait(until)
            return
        try:
            self.act(self._process.poll(until - time.monotonic() if not self.mailbox.has_notes else 0.0))
        except Exception as error:
            self.recover(error)

    def act(self, frames: Sequence[tuple[Any, Unpacker]]) -> None:
        """Handle what has come and do what is due. What it raises is for `recover`."""
        if len(frames) > 1:
            with JoinedWakes():
                for frame, unpacker in frames:
                    self.handle(frame, unpacker)
        elif frames:
            self.handle(*frames[0])
        self.mailbox.settle()
        if self._exchange.look():
            raise ServingError(Code.INTERNAL, "did not come back from execute in time")

    def recover(self, error: Exception) -> None:
        """From a process that has ended, a frame that makes no sense, or a fault of ours: with a new process. Blocks."""
        process, self._process = self._process, None
        if process is None:
            return
        if isinstance(error, ProcessEndedError):
            self._on_end(process.reap(error))
            return
        if not isinstance(error, ServingError):
            _LOG.error("%s: cannot handle what the model's process says", self.placement.name, exc_info=error)
        self._on_end(f"{error}; it was {process.end(0.0)}")

    def _wait(self, until: float) -> None:
        """Without a process there are only notes."""
        rest = until - time.monotonic()
        self._supervisor.pause(self.mailbox.fd, None if rest > 1e6 else max(0.0, rest))
        self.mailbox.settle()

    def adopt(self, process: ModelProcess) -> None:
        """Talk to this process from now on, while it still loads too."""
        self._process = process

    def lose(self) -> None:
        """The adopted process is gone."""
        self._process = None
        self._exchange.give_up(self._unhealthy())

    def handle(self, frame: Any, unpacker: Unpacker) -> None:
        """Raises ServingError for one that makes no sense."""
        handler = self._handlers.get(type(frame))
        if handler is None:
            raise ServingError(Code.INTERNAL, f"sent an unexpected {type(frame).__name__}")
        handler(frame, unpacker)

    # The process' own business

    def _ask_ready(self, answer: "Future[bool]") -> None:
        if self._process is not None and self._abilities.has_is_ready:
            self._questions.ask(answer)
        else:
            tell(answer, self._process is not None)

    def _on_log(self, frame: Log, _: Unpacker) -> None:
        for line in frame.message.splitlines():  # a traceback stays readable, and no line of it looks like one of ours
            _LOG.log(frame.level, "%s: %s", self.placement.name, line)

    def _on_finalized(self, frame: Finalized, _: Unpacker) -> None:
        self._finalized = True
        if frame.message:
            _LOG.error("%s: finalize failed: %s", self.placement.name, frame.message)

    # A process that has ended

    def _on_end(self, reason: str) -> None:
        _LOG.error("%s: the model's process %s", self.placement.name, reason)
        self._supervisor.on_end(self)  # before a caller can know, and goes on with a sequence
        self._exchange.fail_all(self._unhealthy())
        self._calls.process_ended(self)
        self._questions.drop()
        if not self._is_kept:
            return
        started = self._supervisor.restart(self, time.monotonic() - self._born, self._start)
        if started is not None:
            self._come_up(*started)
        else:
            self._exchange.give_up(self._unhealthy())

    def _come_up(self, process: ModelProcess, abilities: Initialized) -> None:
        self._process, self._abilities = process, abilities
        self._born = time.monotonic()
        self._exchange.start(is_concurrent=abilities.is_async)

    def _unhealthy(self) -> ServingError:
        return ServingError(
            Code.INTERNAL, f"Stub process '{self.placement.name}' is not healthy.", reason="process_ended"
        )
