"""`pb_utils`' requests, of callers and to other models."""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from backends.python.frames import Call, RequestFrame
from backends.python.packing import Packer
from backends.python.pb_checks import INT64, UINT32, UINT64, integer, parameters_of, tensors, text, texts
from backends.python.pb_response import (
    InferenceResponse,
    InferenceResponseSender,
    ResponseIterator,
    is_cancelled_now,
    response_of,
)
from backends.python.pb_tensor import Tensor, TritonError, TritonModelException
from backends.python.runtime import CALL_WINDOW, NO_BATCH, PendingCall, RequestState, current_batch, runtime

SEQUENCE_START, SEQUENCE_END = 1, 2
RELEASE_ALL, RELEASE_RESCHEDULE = 1, 2


class PreferredMemory:
    """Where a called model's outputs should lie. Tensors travel in host memory here, so it is accepted and not acted on."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace context of a request; empty while tracing is off."""

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> str:
        return self._context


class InferenceRequest:
    """A request to this model, or one that it makes to another."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: "int | str" = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises TypeError or ValueError, naming the argument; TritonModelException for parameters and no model's name."""
        if not model_name:
            raise TritonModelException("a request to another model needs its model_name")
        self._id = text("request_id", request_id)
        self._correlation_id = _correlation_id(correlation_id)
        self._inputs: Sequence[Tensor] = tensors("inputs", inputs)
        self._outputs = texts("requested_output_names", requested_output_names)
        self._model_name = text("model_name", model_name)
        self._model_version = integer("model_version", model_version, INT64)
        self._flags = integer("flags", flags, UINT32)
        self._timeout = integer("timeout", timeout, UINT64)
        self._trace = trace or InferenceTrace()
        self._parameters = parameters_of(parameters or {})
        self._state: RequestState | None = None
        self._release = RELEASE_ALL

    @classmethod
    def arrived(cls, frame: RequestFrame, inputs: list[Tensor], state: RequestState) -> "InferenceRequest":
        """A request to this model."""
        request = cls.__new__(cls)
        request._id = frame.id
        request._correlation_id = frame.correlation_id
        request._inputs = inputs
        request._outputs = frame.outputs
        request._model_name = ""
        request._model_version = -1
        request._flags = frame.flags
        request._timeout = frame.timeout_us
        request._trace = InferenceTrace()
        request._parameters = frame.parameters
        request._state = state
        request._release = RELEASE_ALL
        return request

    def inputs(self) -> Sequence[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> "int | str":
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = integer("flags", flags, UINT32)

    def timeout(self) -> int:
        """Microseconds the caller gave it in the queue, 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """The request's parameters as JSON."""
        return json.dumps(self._parameters, separators=(",", ":"), ensure_ascii=False)

    def trace(self) -> InferenceTrace:
        return self._trace

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def preferred_memory(self) -> PreferredMemory:
        return PreferredMemory(1)

    def model_name(self) -> str:
        return self._model_name

    def get_response_sender(self) -> "InferenceResponseSender":
        return InferenceResponseSender(self._arrived())

    def is_cancelled(self) -> bool:
        """Whether the caller has left. Seen here as soon as the server knows it."""
        return is_cancelled_now(self._arrived())

    def set_release_flags(self, flags: int) -> None:
        """TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: execute it once more, instead of an answer or after one of several."""
        state = self._arrived()
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException(f"unknown release flags {flags}")
        if flags == RELEASE_RESCHEDULE and not state.runtime.iterative:
            raise TritonModelException("to reschedule a request, set sequence_batching { iterative_sequence: true }")
        if flags == RELEASE_RESCHEDULE and state.closed:
            raise TritonModelException("a request that has had its last response cannot be rescheduled")
        self._release = flags

    @property
    def is_rescheduled(self) -> bool:
        return self._release == RELEASE_RESCHEDULE and self._state is not None and not self._state.closed

    def leave(self) -> int:
        """Its number; nothing more can be sent for it from here."""
        state = self._arrived()
        state.close()
        return state.number

    def exec(self, decoupled: bool = False, execution_timeout: int = 0) -> "InferenceResponse | ResponseIterator":
        """Ask the model and wait. With `decoupled`, an iterator over its responses; else its one response.

        What goes wrong there comes as the response's error. `execution_timeout` is in microseconds. In `async def
        execute` nothing else happens meanwhile: `async_exec` is for there.
        """
        call = self._start(decoupled, execution_timeout, blocks=True)
        if decoupled:
            return ResponseIterator(call)
        taken = runtime().next_response(call)
        return _no_response(self._model_name) if taken is None else response_of(*taken)

    def async_exec(
        self, decoupled: bool = False, execution_timeout: int = 0
    ) -> "Awaitable[InferenceResponse | ResponseIterator]":
        """The same without waiting: the request is on its way when this returns. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        call = self._start(decoupled, execution_timeout, blocks=False)
        return loop.create_task(self._finish(call, decoupled))

    async def _finish(self, call: PendingCall, decoupled: bool) -> "InferenceResponse | ResponseIterator":
        if decoupled:
            return ResponseIterator(call)
        try:
            await runtime().news_of(call)
        except asyncio.CancelledError:
            runtime().cancel_call(call)
            raise
        taken = runtime().take(call)
        return _no_response(self._model_name) if taken is None else response_of(*taken)

    def _start(self, decoupled: bool, timeout: int, *, blocks: bool) -> PendingCall:
        batch = current_batch.get()
        timeout = integer("execution_timeout", timeout, UINT64)
        version = "" if self._model_version < 0 else str(self._model_version)

        def make(packer: Packer, number: int) -> Call:
            inputs = [packer.pack(t._name, t._datatype, t._shape, t.contents) for t in self._inputs]
            fields = (self._flags, timeout or self._timeout, self._parameters, self._outputs, inputs)
            request = RequestFrame(number, self._id, self._correlation_id, *fields, CALL_WINDOW)
            waits = (blocks and batch != NO_BATCH, blocks and runtime().is_on_loop)
            return Call(number, batch, *waits, self._model_name, version, decoupled, request)

        return runtime().start_call(make)

    def _arrived(self) -> RequestState:
        if self._state is None:
            raise TritonModelException("this request was made here: only one that came from a caller has a sender")
        return self._state


def _correlation_id(value: Any) -> "int | str":
    name = "correlation_id"
    return text(name, value) if isinstance(value, str) else integer(name, value, UINT64)


def _no_response(model: str) -> InferenceResponse:
    return InferenceResponse(error=TritonError(f"model '{model}' gave no response"))
