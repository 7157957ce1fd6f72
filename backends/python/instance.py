"""One instance of a custom model on the server's side: hands batches to its process and keeps that alive."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from backends.api.base import Placement, RequestBatch
from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest
from backends.python.calls import Calls
from backends.python.frames import (
    Answers,
    Batch,
    Call,
    Cancel,
    CancelCall,
    Control,
    Executed,
    Finalize,
    Finalized,
    Grant,
    Log,
    Measure,
    Register,
    RequestFrame,
    Response,
)
from backends.python.gate import PollingGate
from backends.python.options import PythonOptions
from backends.python.packing import Unpacker
from backends.python.process import ModelProcess, ProcessEndedError
from backends.python.responses import error_of, outcome_of
from backends.python.supervisor import Supervisor

_LOG = logging.getLogger("tidegate.model")
_SLOW_READER = 0.005  # seconds between two looks at whether a slow reader has made room
_FLAG_START, _FLAG_END = 1, 2


@dataclass(slots=True, eq=False)
class Run:
    """A batch in the process. `executing` until `execute` has returned; answers may come after that."""

    number: int
    batch: RequestBatch
    first: int  # number of its first request, the others follow
    deadline: float
    executing: bool = True
    abandoned: float = inf


class PythonInstance:
    """A `RequestInstance`. Everything happens on its one thread; others only leave a note in the outbox.

    `start` brings up a process ready to execute, or raises ServingError; `on_down` and `on_up` are told when that
    failed after the process had died, and when it is well again.
    """

    def __init__(
        self,
        placement: Placement,
        names: tuple[str, str],
        outputs: list[str],
        options: PythonOptions,
        start: Callable[["PythonInstance"], tuple[ModelProcess, bool]],
        calls: Calls,
        supervisor: Supervisor,
        *,
        decoupled: bool,
    ) -> None:
        self.placement = placement
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._is_closed = False
        self.gate = PollingGate(self)
        self._names = names  # model and version
        self._outputs = outputs
        self._options = options
        self._start = start
        self._calls = calls
        self._supervisor = supervisor
        self._decoupled = decoupled
        self._outbox: deque[Callable[[], None]] = deque()
        self._runs: dict[int, Run] = {}
        self._requests: dict[int, tuple[Run, int]] = {}
        self._granted: dict[int, int] = {}
        self._slow: set[int] = set()
        self._timed: dict[int, float] = {}  # requests with a deadline
        self._next_number = 1
        self._next_run = 1
        self._num_executing = 0
        self._born = 0.0
        self._finalized = False
        self._process: ModelProcess | None = None
        self._is_async = False
        try:
            self._process, self._is_async = start(self)
        except BaseException:
            self._close_wake()
            raise
        self._born = time.monotonic()

    @property
    def model(self) -> str:
        return self._names[0]

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def num_open(self) -> int:
        return len(self._requests)

    # RequestInstance

    def execute_requests(self, batch: RequestBatch) -> None:
        if self._process is None:
            batch.fail_all(self._unhealthy())
            return
        self._begin(batch)
        limit = self._options.max_concurrency if self._is_async else 1
        self.poll_until(lambda: self._num_executing < limit)

    def drain(self) -> None:
        self.poll_until(lambda: not self._requests and not self._num_executing)

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
        self._calls.close(self)
        self._close_wake()

    def _close_wake(self) -> None:
        with self._wake_lock:
            self._is_closed = True
            os.close(self.wake_fd)

    # On any thread

    def post(self, act: Callable[[], None]) -> None:
        """Have `act` done on the instance's thread, soon."""
        self._outbox.append(act)
        self.wake()

    def wake(self) -> None:
        with self._wake_lock:  # a closed descriptor's number is soon somebody else's
            if not self._is_closed:
                os.eventfd_write(self.wake_fd, 1)

    # On the instance's thread

    def send(self, frame: tuple[Any, ...], pack: Any = None) -> None:
        if self._process is not None:
            self._process.send(frame, pack)

    def packer(self) -> Any:
        return None if self._process is None else self._process.packer()

    def requests_of(self, run: int) -> list[InferenceRequest]:
        """The requests of a batch, for calls made on their behalf."""
        found = self._runs.get(run)
        return [] if found is None else list(found.batch.requests)

    @property
    def executing(self) -> list[Run]:
        """Batches in `execute`, as of this moment, for any thread to look at."""
        return [run for run in self._runs.copy().values() if run.executing]

    @property
    def has_room(self) -> bool:
        """Whether another batch could begin now."""
        return len(self.executing) < (self._options.max_concurrency if self._is_async else 1)

    def poll_until(self, done: Callable[[], bool], until: float = inf) -> None:
        """Do what there is to do until `done`; `until` is when to look again at the latest."""
        while not done():
            self._step(min(until, self._next_look()))

    def _step(self, until: float) -> None:
        if self._process is None:
            self._wait(until)
            return
        try:
            frames = self._process.poll(until - time.monotonic() if not self._outbox else 0.0)
            for frame, unpacker in frames:
                self.handle(frame, unpacker)
            self.settle()
            self._look()
        except ProcessEndedError as error:
            self._on_end(str(error))
        except Exception as error:  # a frame that makes no sense, or a fault of ours: this thread must not end of it
            if not isinstance(error, ServingError):
                _LOG.exception("%s: cannot handle what the model's process says", self.placement.name)
            process, self._process = self._process, None
            if process is not None:
                self._on_end(f"{error}; it was {process.end(0.0)}")

    def _wait(self, until: float) -> None:
        """Without a process there are only notes."""
        rest = until - time.monotonic()
        self._supervisor.pause(self.wake_fd, None if rest > 1e6 else max(0.0, rest))
        self.settle()

    def settle(self) -> None:
        """Do what others have posted."""
        while self._outbox:
            self._outbox.popleft()()

    def adopt(self, process: ModelProcess) -> None:
        """Talk to this process from now on, while it still loads too."""
        self._process = process

    def lose(self) -> None:
        """The adopted process is gone."""
        self._process = None

    def handle(self, frame: Any, unpacker: Unpacker) -> None:
        """Raises ServingError for one that makes no sense."""
        handler = self._handlers.get(type(frame))
        if handler is None:
            raise ServingError(Code.INTERNAL, f"sent an unexpected {type(frame).__name__}")
        handler(self, frame, unpacker)

    def _register(self, number: int, run: Run, request: InferenceRequest) -> None:
        self._requests[number] = (run, number - run.first)
        if request.deadline is not None:
            self._timed[number] = request.deadline
        if self._decoupled:
            self._granted[number] = self._options.response_window
        request.stream.on_cancel(partial(self.post, partial(self._cancel, number)))

    def _begin(self, batch: RequestBatch) -> None:
        assert self._process is not None
        packer = self._process.packer()
        first = self._next_number
        frames = []
        for index, request in enumerate(batch.requests):  # whatever is wrong with a tensor shows here, before the rest
            inputs = [packer.pack(t.name, t.datatype, t.shape, t.data) for t in batch.inputs(index)]
            frames.append(self._frame(first + index, request, inputs))
        timeout = self._options.execution_timeout_secs
        run = Run(self._next_run, batch, first, time.monotonic() + timeout if timeout else inf)
        self._next_run += 1
        self._next_number += len(frames)
        self._runs[run.number] = run
        self._num_executing += 1
        self._process.send(Batch(run.number, frames), packer)
        for number, request in enumerate(batch.requests, first):
            self._register(number, run, request)

    def _frame(self, number: int, request: InferenceRequest, inputs: list[Any]) -> RequestFrame:
        flags = (_FLAG_START if request.sequence_start else 0) | (_FLAG_END if request.sequence_end else 0)
        outputs = [output.name for output in request.outputs] or self._outputs
        return RequestFrame(
            number,
            request.id,
            request.sequence_id,
            flags,
            request.timeout_us,
            request.parameters,  # type: ignore[arg-type]  # the values are a subset
            outputs,
            inputs,
        )

    def _cancel(self, number: int) -> None:
        """The reader left, or its time is over."""
        known = self._requests.get(number)
        if known is None:
            return
        run, index = known
        run.batch.cancelled(index)
        self.send(Cancel([number]))
        self._forget(number)

    # What comes from the process

    def _on_answers(self, frame: Answers, unpacker: Unpacker) -> None:
        run = self._runs.get(frame.batch)
        if run is None or len(frame.responses) != len(run.batch.requests):
            raise ServingError(Code.INTERNAL, f"answers to unknown batch {frame.batch}")
        outcomes = [outcome_of(self._names, response, unpacker) for response in frame.responses]
        run.batch.executed(frame.start, frame.end)
        self._returned(run)
        run.batch.answer(outcomes)
        for index in range(len(outcomes)):
            self._forget(run.first + index)

    def _on_executed(self, frame: Executed, _: Unpacker) -> None:
        run = self._runs.get(frame.batch)
        if run is None:
            return
        self._returned(run)
        if frame.error is not None:
            run.batch.fail_all(error_of(frame.error))
            for index in range(len(run.batch.requests)):
                self._forget(run.first + index)
        else:
            run.batch.executed(frame.start, frame.end)
        self._drop_if_over(run)

    def _on_response(self, frame: Response, unpacker: Unpacker) -> None:
        response = None if frame.response is None else outcome_of(self._names, frame.response, unpacker)
        known = self._requests.get(frame.request)
        if known is None:
            return  # it has ended: the reader left, or its time was over
        run, index = known
        if isinstance(response, ServingError):
            run.batch.fail(index, response)
        elif not self._decoupled:
            if response is not None:
                run.batch.answer_one(index, response)
            elif frame.final:
                run.batch.fail(index, _no_answer())
        elif frame.final:
            run.batch.finish(index, response)
        elif response is not None:
            response.final = False
            run.batch.put(index, response)
            self._count_response(frame.request, run, index)
        if frame.final or not run.batch.is_open(index):
            self._forget(frame.request)

    def _on_log(self, frame: Log, _: Unpacker) -> None:
        _LOG.log(frame.level, "%s: %s", self.placement.name, frame.message)

    def _on_finalized(self, frame: Finalized, _: Unpacker) -> None:
        self._finalized = True
        if frame.message:
            _LOG.error("%s: finalize failed: %s", self.placement.name, frame.message)

    def _on_service(self, frame: Any, unpacker: Unpacker) -> None:
        self._calls.handle(self, frame, unpacker)

    _handlers: dict[type, Any] = {
        Answers: _on_answers,
        Executed: _on_executed,
        Response: _on_response,
        Log: _on_log,
        Finalized: _on_finalized,
        **dict.fromkeys((Call, CancelCall, Grant, Control, Register, Measure), _on_service),
    }

    # Slow readers, deadlines, hangs

    def _count_response(self, number: int, run: Run, index: int) -> None:
        """A response has come; half a window later the model needs leave to send more."""
        self._granted[number] -= 1
        if self._granted[number] <= self._options.response_window // 2:
            self._grant(number, run, index)

    def _grant(self, number: int, run: Run, index: int) -> None:
        """Let the model send on, unless the reader lags behind."""
        half = self._options.response_window // 2
        if run.batch.requests[index].stream.num_waiting > half:
            self._slow.add(number)
            return
        self._slow.discard(number)
        count = self._options.response_window - self._granted[number]
        self._granted[number] += count
        self.send(Grant(number, count))

    def _next_look(self) -> float:
        when = inf
        for run in self._runs.values():
            if run.executing:
                when = min(when, run.deadline, run.abandoned)
        if self._timed:
            when = min(when, *self._timed.values())
        if self._slow:
            when = min(when, time.monotonic() + _SLOW_READER)
        return when

    def _look(self) -> None:
        now = time.monotonic()
        for number in list(self._slow):
            self._grant(number, *self._requests[number])
        for number in [number for number, deadline in self._timed.items() if deadline <= now]:
            run, index = self._requests[number]
            run.batch.fail(index, _too_late(run.batch.requests[index]))
            self._cancel(number)
        for run in self._runs.values():
            if run.executing and min(run.deadline, run.abandoned) <= now:
                assert self._process is not None
                process, self._process = self._process, None
                self._on_end(f"did not come back from execute in time and was {process.end(0.0)}")
                return

    def _returned(self, run: Run) -> None:
        if run.executing:
            run.executing = False
            self._num_executing -= 1

    def _forget(self, number: int) -> None:
        known = self._requests.pop(number, None)
        if known is None:
            return
        self._granted.pop(number, None)
        self._timed.pop(number, None)
        self._slow.discard(number)
        run, _ = known
        self._drop_if_over(run)
        if run.executing and run.batch.is_over and self._options.abandoned_timeout_secs:
            run.abandoned = time.monotonic() + self._options.abandoned_timeout_secs

    def _drop_if_over(self, run: Run) -> None:
        if run.batch.is_over and not run.executing:
            self._runs.pop(run.number, None)

    # A process that has ended

    def _on_end(self, reason: str) -> None:
        self._process = None
        _LOG.error("%s: the model's process %s", self.placement.name, reason)
        error = self._unhealthy()
        for run in list(self._runs.values()):
            run.batch.fail_all(error)
        self._runs.clear()
        self._requests.clear()
        self._granted.clear()
        self._timed.clear()
        self._slow.clear()
        self._num_executing = 0
        self._calls.process_ended(self)
        started = self._supervisor.restart(self, time.monotonic() - self._born, self._start)
        if started is not None:
            self._process, self._is_async = started
            self._born = time.monotonic()

    def _unhealthy(self) -> ServingError:
        return ServingError(
            Code.INTERNAL, f"Stub process '{self.placement.name}' is not healthy.", reason="process_ended"
        )


def _no_answer() -> ServingError:
    return ServingError(Code.INTERNAL, "the model closed a request without a response")


def _too_late(request: InferenceRequest) -> ServingError:
    return ServingError(
        Code.DEADLINE,
        f"{request.label} the deadline passed while model '{request.model}' was executing",
        reason="deadline",
    )
