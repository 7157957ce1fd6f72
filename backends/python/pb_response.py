"""`pb_utils`' responses and the ways they come and go: senders and iterators."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from backends.python.frames import ErrorFrame, Response, ResponseFrame
from backends.python.packing import Packer
from backends.python.pb_checks import parameters_of, tensors
from backends.python.pb_tensor import Tensor, TritonError, TritonModelException, code_name, error_of
from backends.python.runtime import PendingCall, RequestState, runtime

FINAL = 1


class InferenceResponse:
    """Output tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error: expected a TritonError, found {type(error).__name__}")
        self._tensors = tensors("output_tensors", output_tensors)
        self._error = error
        self._parameters = parameters_of(parameters) if parameters else {}

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def pack(self, packer: Packer) -> ResponseFrame:
        if self._error is not None:
            return ResponseFrame([], self._parameters, ErrorFrame(code_name(self._error), self._error.message()))
        packed = [packer.pack(t._name, t._datatype, t._shape, t.contents) for t in self._tensors]
        return ResponseFrame(packed, self._parameters, None)


class InferenceResponseSender:
    """Sends a request's responses, from any thread. Kept by the model for as long as it has something to send."""

    __slots__ = ("_state",)

    def __init__(self, state: RequestState) -> None:
        self._state = state

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the last one with TRITONSERVER_RESPONSE_COMPLETE_FINAL.

        Waits while the caller reads too slowly. After the caller has left, responses go nowhere.
        """
        state = self._state
        owner = state.runtime
        if state.closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if flags not in (0, FINAL):
            raise TritonModelException(f"Unable to send response. Unsupported flag provided: {flags}")
        if response is None and not flags:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() takes an InferenceResponse, found {type(response).__name__}")
        if response is not None and state.num_sent and not owner.decoupled:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is not None:
            self._wait_for_room()
            state.num_sent += 1
        if flags:
            state.close()
        elif state.cancelled:
            return
        number, kept = state.number, None if state.cancelled else response
        owner.link.send_packed(
            lambda packer: Response(number, None if kept is None else kept.pack(packer), bool(flags))
        )

    def is_cancelled(self) -> bool:
        return is_cancelled_now(self._state)

    def _wait_for_room(self) -> None:
        state = self._state
        if state.credits <= 0:
            state.runtime.link.wait(lambda: state.credits > 0 or state.cancelled)
        state.credits -= 1


class ResponseIterator:
    """The responses of a decoupled call, for `for` and `async for`."""

    def __init__(self, call: PendingCall) -> None:
        self._call = call

    def __iter__(self) -> Iterator[InferenceResponse]:
        while (taken := runtime().next_response(self._call)) is not None:
            yield response_of(*taken)

    async def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        while True:
            await runtime().news_of(self._call)
            taken = runtime().take(self._call)
            if taken is None:
                return
            yield response_of(*taken)

    def cancel(self) -> None:
        """The rest is not wanted."""
        runtime().cancel_call(self._call)


def response_of(tensors: list[Tensor], frame: ResponseFrame) -> InferenceResponse:
    error = None if frame.error is None else error_of(*frame.error)
    return InferenceResponse(tensors, error, frame.parameters)


def is_cancelled_now(state: RequestState) -> bool:
    if not state.cancelled and not state.closed:
        state.runtime.link.read_ready()
    return state.cancelled
