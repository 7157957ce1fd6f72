"""Calls that are answered on grpc's own polling thread and the models', without a thread for each.

grpc's Python server gives a call a thread that sleeps three times: for the message, the model, and a lock. Half of what
a small request costs is that. Here the polling thread itself reads a message and hands the request to its model, and
the thread that has the answer sends it: measured for ModelInfer, 200 µs of processor time a request in place of 350.

It stands on the interface that grpc's own Python server is written on (`grpc._cython.cygrpc`), of which grpc makes no
promises. `DirectCalls` raises AttributeError where it is not as expected, and the calls are then served by threads.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc
from grpc._cython import cygrpc

from gateway.errors import as_serving_error, grpc_details
from gateway.kserve_grpc_front import Front
from gateway.kserve_grpc_keys import bearer, grpc_code

T = TypeVar("T")
LARGE = 64 * 1024  # bytes of a message that a thread of the pool reads or writes: others must not wait for it
Ended = tuple[Any, tuple[()]]
"""What grpc's loop is told of an event: the call that is over with it, or None, and no callbacks."""
_NO_FLAGS = 0


@dataclass(frozen=True, slots=True)
class Status:
    code: grpc.StatusCode
    text: str = ""


OK = Status(grpc.StatusCode.OK)
BUSY = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
NOT_READABLE = Status(grpc.StatusCode.INTERNAL, "Exception deserializing request!")


def status_of(error: Exception) -> Status:
    known = as_serving_error(error)
    return Status(grpc_code(known), grpc_details(known))


class DirectCalls:
    """Answers the calls of some methods of a grpc server. Make it before the server starts, and `start` it after."""

    def __init__(
        self,
        server: grpc.Server,
        front: Front,
        pool: Executor,
        max_concurrent: int,
        methods: "Mapping[str, Callable[[DirectCalls, Any], Call]]",
    ) -> None:
        self.front = front
        self.pool = pool
        self.max_concurrent = max_concurrent
        self._methods = methods
        self._core = server._cy_server
        self._state = server._state
        self._queue = server._state.completion_queue
        self._open: set[Any] = server._state.rpc_states  # the server stops when it is empty
        for method in methods:
            self._core.register_method(method)

    @property
    def is_full(self) -> bool:
        """Whether calls of all kinds have reached the limit, the one that asks included."""
        return len(self._open) > self.max_concurrent

    def start(self) -> None:
        """Ask for the next call of each method; it comes to `_called`, on the polling thread."""
        for method in self._methods:
            self._ask(method)

    def aside(self, work: Callable[[T], None], argument: T) -> None:
        """Do what takes long on a thread of the pool, here only once the pool has closed."""
        try:
            self.pool.submit(work, argument)
        except RuntimeError:
            work(argument)

    def _ask(self, method: str) -> None:
        self._core.request_registered_call(self._queue, self._queue, method, partial(self._called, method))

    def _called(self, method: str, event: Any) -> Ended:
        if event.success:  # else the server is shutting down
            call = self._methods[method](self, event)
            with self._state.lock:
                self._open.add(call)
            call.start()
            self._ask(method)
        return None, ()


class Call:
    """One call: its operations end on the polling thread, its answers are sent by whoever has them.

    grpc's server forgets it when no operation is under way and the status, which is counted from the start, has left.
    """

    def __init__(self, calls: DirectCalls, event: Any) -> None:
        self.calls = calls
        self.metadata = event.invocation_metadata
        self._core = event.call
        self._lock = threading.Lock()
        self._num_operations = 1  # the status
        self._has_begun = False  # the initial metadata has been sent
        self._is_watched = False  # the call's close has been asked for

    def start(self) -> None:
        """Called once, on the polling thread."""
        raise NotImplementedError

    def invocation_metadata(self) -> Any:
        """For `Front.admit` and `accept`, which take a call for grpc's context."""
        return self.metadata

    def authenticate(self) -> None:
        """What grpc's interceptors do, which do not see these calls. Raises ServingError."""
        gate = self.calls.front.service.gate
        if gate is not None:
            gate.authenticate(bearer(self.metadata))

    def watch(self) -> None:
        """Have `client_left` called if the client leaves before the end of the call. Nothing after `finish`."""
        with self._lock:
            watching = self._watching()
            self._num_operations += len(watching)
        if watching:
            self._core.start_server_batch(watching, self._on_close)

    def read(self) -> None:
        """Ask for the next message, which comes to `received`."""
        self.operate((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._on_message)

    def send(self, content: bytes, then: Callable[[Any], Ended]) -> None:
        self.operate((*self._beginning(), cygrpc.SendMessageOperation(content, _NO_FLAGS)), then)

    def finish(self, status: Status, content: bytes | None = None) -> None:
        """The end of the call, once; with `content`, after this last message."""
        message = () if content is None else (cygrpc.SendMessageOperation(content, _NO_FLAGS),)
        text = status.text.encode(errors="replace")
        last = cygrpc.SendStatusFromServerOperation((), status.code.value[0], text, _NO_FLAGS)
        with self._lock:
            watching = self._watching()  # the close of a call must be asked for once
        self._core.start_server_batch((*self._beginning(), *message, last, *watching), self.ended)

    def operate(self, operations: Sequence[Any], then: Callable[[Any], Ended]) -> None:
        with self._lock:
            self._num_operations += 1
        self._core.start_server_batch(operations, then)

    def ended(self, event: Any) -> Ended:
        """An operation is over; what every callback of one returns."""
        with self._lock:
            self._num_operations -= 1
            return (None if self._num_operations else self), ()

    def received(self, content: bytes | None) -> None:
        """A message, on the polling thread; None when the client sends no more."""
        raise NotImplementedError

    def client_left(self) -> None:
        raise NotImplementedError

    def _beginning(self) -> Sequence[Any]:
        if self._has_begun:
            return ()
        self._has_begun = True
        return (cygrpc.SendInitialMetadataOperation((), _NO_FLAGS),)

    def _watching(self) -> Sequence[Any]:
        """Under the lock."""
        if self._is_watched:
            return ()
        self._is_watched = True
        return (cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),)

    def _on_close(self, event: Any) -> Ended:
        if event.batch_operations[0].cancelled():
            self.client_left()
        return self.ended(event)

    def _on_message(self, event: Any) -> Ended:
        self.received(event.batch_operations[0].message())
        return self.ended(event)
