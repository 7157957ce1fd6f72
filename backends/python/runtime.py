"""What `pb_utils` stands on inside a model's process: open requests, calls to other models, the link to the server."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from backends.python.frames import (
    Call,
    CallResponse,
    Cancel,
    CancelCall,
    Control,
    ErrorFrame,
    Grant,
    Measure,
    Register,
    Reply,
    Response,
    ResponseFrame,
)
from backends.python.link import Link
from backends.python.packing import Packer, Unpacker
from backends.python.pb_tensor import Tensor, TritonModelException

NO_BATCH = -1
CALL_WINDOW = 32  # responses of a decoupled call that may wait in this process

current_batch: contextvars.ContextVar[int] = contextvars.ContextVar("current_batch", default=NO_BATCH)


class RequestState:
    """What a request and its response sender share. A request whose last reference goes while it is open has failed."""

    __slots__ = ("__weakref__", "cancelled", "closed", "credits", "num_sent", "number", "runtime")

    def __init__(self, runtime: "Runtime", number: int, window: int) -> None:
        self.runtime = runtime
        self.number = number
        self.credits = window
        self.num_sent = 0
        self.cancelled = False
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self.runtime.states.pop(self.number, None)

    def __del__(self) -> None:
        if not self.closed:
            number = self.number
            self.runtime.link.drop(lambda: Response(number, _dropped(), True))


class PendingCall:
    """A request to another model on its way. One whose last reference goes before its end is cancelled."""

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self._link = link
        self.responses: deque[Any] = deque()
        self.is_final = False
        self.on_change: Callable[[], object] | None = None

    @property
    def has_news(self) -> bool:
        return self.is_final or bool(self.responses)

    def __del__(self) -> None:
        if not self.is_final:
            number = self.number
            self._link.drop(lambda: CancelCall(number))


class Runtime:
    """The one of its process. Frames are handled on whichever thread reads."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.decoupled = False
        self.iterative = False
        self.loop: asyncio.AbstractEventLoop | None = None  # that of `async def execute`, while it runs
        self.states: WeakValueDictionary[int, RequestState] = WeakValueDictionary()
        self._calls: WeakValueDictionary[int, PendingCall] = WeakValueDictionary()
        self._awaited: set[PendingCall] = set()  # by tasks that nothing else may hold
        self._replies: dict[int, Reply | None] = {}
        self._numbers = count(1)
        self._watched: dict[asyncio.AbstractEventLoop, int] = {}
        link.handlers |= {
            Cancel: self._on_cancel,
            Grant: self._on_grant,
            CallResponse: self._on_call_response,
            Reply: self._on_reply,
        }

    def end(self) -> None:
        """The server waits for nothing more: what the model has left open, the interpreter drops when the link is gone."""
        for state in list(self.states.values()):
            state.closed = True
        for call in list(self._calls.values()):
            call.is_final = True

    @property
    def is_on_loop(self) -> bool:
        """Whether to wait here is to hold up every execution of this process."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    # Calls to other models

    def start_call(self, make: Callable[[Packer, int], Call]) -> PendingCall:
        call = PendingCall(self.link, next(self._numbers))
        self._calls[call.number] = call
        self.link.send_packed(lambda packer: make(packer, call.number))
        return call

    def next_response(self, call: PendingCall) -> Any:
        """The next response, None after the last. Waits, and serves others meanwhile."""
        self.link.wait(lambda: call.has_news)
        return self.take(call)

    def take(self, call: PendingCall) -> Any:
        if not call.responses:
            return None
        response = call.responses.popleft()
        if not call.is_final:
            self.link.send(Grant(call.number, 1))
        return response

    def cancel_call(self, call: PendingCall) -> None:
        if not call.is_final:
            self.link.send(CancelCall(call.number))

    async def news_of(self, call: PendingCall) -> None:
        """Return when there is something to take, on whatever loop this is."""
        loop = asyncio.get_running_loop()
        if call.has_news:
            return
        future: asyncio.Future[None] = loop.create_future()
        call.on_change = lambda: loop.call_soon_threadsafe(_complete, future)
        self._awaited.add(call)
        self.watch(loop)
        try:
            if not call.has_news:
                await future
        finally:
            call.on_change = None
            self._awaited.discard(call)
            self.unwatch(loop)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the link while this loop runs."""
        if not self._watched.get(loop):
            loop.add_reader(self.link.fileno(), self.link.read_ready)
        self._watched[loop] = self._watched.get(loop, 0) + 1
        loop.call_soon(self.link.read_ready)  # what another thread left unread makes no event

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched[loop] -= 1
        if not self._watched[loop]:
            del self._watched[loop]
            loop.remove_reader(self.link.fileno())

    # Questions to the server

    def ask(self, make: Callable[[int], "Control | Register | Measure"]) -> float:
        """Raises TritonModelException with the server's reason."""
        number = next(self._numbers)
        self._replies[number] = None
        self.link.send(make(number))
        self.link.wait(lambda: self._replies[number] is not None)
        reply = self._replies.pop(number)
        assert reply is not None
        if reply.error is not None:
            raise TritonModelException(reply.error.message)
        return float(reply.value)

    # Frames

    def _on_cancel(self, frame: Cancel, _: Unpacker) -> None:
        for number in frame.requests:
            state = self.states.get(number)
            if state is not None:
                state.cancelled = True

    def _on_grant(self, frame: Grant, _: Unpacker) -> None:
        state = self.states.get(frame.request)
        if state is not None:
            state.credits += frame.num_more

    def _on_call_response(self, frame: CallResponse, unpacker: Unpacker) -> None:
        # taken for nobody too: that gives the memory they lie in back
        tensors = [] if frame.response is None else [take_tensor(each, unpacker) for each in frame.response.tensors]
        call = self._calls.get(frame.call)
        if call is None:
            return
        if frame.response is not None:
            call.responses.append((tensors, frame.response))
        if frame.final:
            call.is_final = True
        if call.on_change is not None:
            call.on_change()

    def _on_reply(self, frame: Reply, _: Unpacker) -> None:
        self._replies[frame.call] = frame


_runtime: Runtime | None = None


def set_runtime(runtime: Runtime) -> None:
    global _runtime  # one model, one process
    _runtime = runtime


def runtime() -> Runtime:
    if _runtime is None:
        raise TritonModelException("this needs the server: it works inside of a served model only")
    return _runtime


def take_tensor(frame: Any, unpacker: Unpacker) -> Tensor:
    return Tensor.made_of(frame.name, frame.datatype, tuple(frame.shape), unpacker.take(frame))


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _dropped() -> ResponseFrame:
    text = "the model dropped a request without a final response"
    return ResponseFrame([], {}, ErrorFrame("INTERNAL", text))
