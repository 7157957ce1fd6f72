"""ModelStreamInfer: any mix of requests and their answers on one call (triton spec 2.3)."""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tritonclient.grpc import service_pb2 as pb

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from gateway.admission import Release, nothing_to_release
from gateway.errors import as_serving_error
from gateway.kserve_grpc_front import Front
from gateway.kserve_grpc_infer import accept
from gateway.kserve_json_answer import AnswerForm
from gateway.kserve_parameters import EMPTY_FINAL
from gateway.kserve_proto import encode_infer
from gateway.kserve_service import complete, is_mark, no_answer

log = logging.getLogger(__name__)
FINAL = "triton_final_response"
_MAX_OPEN = 1024  # requests of one stream in flight: past it, the next is not read


@dataclass(slots=True, eq=False)
class _Open:
    """A request of a stream, from its message to its last answer. `held` are answers that wait for their turn."""

    id: str
    request: InferenceRequest | None = None  # None: refused before a model took it
    form: AnswerForm | None = None
    decoupled: bool = False
    wants_empty_final: bool = False
    refusal: ServingError | None = None
    held: list[Any] = field(default_factory=list)
    has_answer: bool = False
    has_final: bool = False
    is_done: bool = False
    release: Release = nothing_to_release


class Carrier(Protocol):
    """What carries a stream's messages; both may be called on any thread."""

    def wake(self) -> None:
        """There may be something to send."""
        ...

    def resume(self) -> None:
        """A stream that had no room has room again."""
        ...


class StreamSession:
    """One ModelStreamInfer call: requests in, answers to any mix of them out, whoever carries them.

    Answers of ordinary models come in request order, those of decoupled ones as they come. One thread at a time brings
    requests, one at a time takes messages.
    """

    def __init__(self, front: Front, context: Any, carrier: Carrier) -> None:
        self._front = front
        self._context = context
        self._carrier = carrier
        metadata = {str(name): value for name, value in context.invocation_metadata()}
        self._errors_close = metadata.get("triton_grpc_error") == "true"
        self._ready: deque[_Open] = deque()  # those that have something to read
        self._lock = threading.Lock()
        self._open: set[_Open] = set()
        self._in_order: deque[_Open] = deque()  # of ordinary models, oldest first
        self._is_reading = True
        self._is_cancelled = False
        self._fatal: ServingError | None = None  # what ends the call, where the client asked for that

    @property
    def has_room(self) -> bool:
        """Whether the next request may be read."""
        return len(self._open) < _MAX_OPEN or self._is_cancelled

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._is_cancelled or not (self._is_reading or self._open or self._ready)

    @property
    def has_news(self) -> bool:
        return bool(self._ready) or self.is_over

    # Whoever brings requests

    def receive(self, message: Any) -> None:
        entry = _Open(message.id)
        try:
            self._front.admit("inference", self._context)
            entry.release = self._front.enter(message, self._context)
            model, request, form = accept(self._front, message, self._context, allow_decoupled=True)
        except Exception as error:
            entry.refusal = as_serving_error(error)
            self._register(entry)
            self._look_at(entry)
            return
        request.times.received = time.monotonic()
        entry.request, entry.form, entry.decoupled = request, form, model.config.decoupled
        entry.wants_empty_final = EMPTY_FINAL in message.parameters and message.parameters[EMPTY_FINAL].bool_param
        if self._register(entry):
            self._front.submit(model, request)
            request.stream.notify(partial(self._look_at, entry))
        else:
            self._finish(entry, _gone())

    def receive_end(self) -> None:
        self._is_reading = False
        self._carrier.wake()

    def cancel(self) -> None:
        """The call has ended, in any way. On any thread, also more than once."""
        with self._lock:
            self._is_cancelled = True
            entries = list(self._open)
        for entry in entries:
            if entry.request is not None:
                entry.request.stream.cancel("the client has gone")
        self._carrier.resume()
        self._carrier.wake()

    def _register(self, entry: _Open) -> bool:
        """Whether the call is still on."""
        with self._lock:
            self._open.add(entry)
            if not entry.decoupled:
                self._in_order.append(entry)
            return not self._is_cancelled

    def _look_at(self, entry: _Open) -> None:
        self._ready.append(entry)
        self._carrier.wake()

    # Whoever takes messages

    def next_messages(self) -> list[Any] | None:
        """What may be sent now; None when nothing is ready. Raises the ServingError that is to end the call."""
        if not self._ready:
            return None
        messages = self._advance(self._ready.popleft())
        if self._fatal is not None:
            raise self._fatal
        return messages

    def close(self) -> None:
        """No message is taken any more."""
        self.cancel()
        for left in list(self._open):
            self._finish(left, _gone())

    def _advance(self, entry: _Open) -> list[Any]:
        """What may be sent now that `entry` has something to read."""
        messages = self._read_entry(entry)
        if not entry.is_done and entry.request is not None:
            entry.request.stream.notify(partial(self._look_at, entry))
        if entry.decoupled:
            return messages
        entry.held += messages
        sendable: list[Any] = []
        while self._in_order and self._in_order[0].is_done:
            sendable += self._in_order.popleft().held
        return sendable

    def _read_entry(self, entry: _Open) -> list[Any]:
        if entry.request is None or entry.form is None:
            error = entry.refusal or ServingError(Code.INTERNAL, "refused without a reason")
            self._finish(entry, error)
            return [_error_message(entry, error)]
        stream = entry.request.stream
        messages: list[Any] = []
        had_ended = stream.ended
        try:
            for response in stream.poll():
                messages += self._messages(entry, entry.form, complete(response, entry.request))
            if had_ended:
                # items and the end may have come together: only an empty look after the end is the end
                messages += self._messages_at_end(entry)
        except Exception as failure:
            messages += self._fail(entry, as_serving_error(failure))
        return messages

    def _messages(self, entry: _Open, form: AnswerForm, response: InferenceResponse) -> list[Any]:
        is_final = response.final or not entry.decoupled
        entry.has_answer = True
        entry.has_final = entry.has_final or is_final
        if entry.decoupled and is_mark(response) and not entry.wants_empty_final:
            return []
        message = pb.ModelStreamInferResponse(infer_response=encode_infer(response, form))
        message.infer_response.parameters[FINAL].bool_param = is_final
        return [message]

    def _messages_at_end(self, entry: _Open) -> list[Any]:
        assert entry.request is not None
        rest = entry.request.stream.poll()  # raises the error of a bad end
        assert not rest, "nothing is put after the end"
        if not entry.decoupled and not entry.has_answer:
            raise no_answer(entry.request)
        self._finish(entry, None)
        if not entry.decoupled or entry.has_final or not entry.wants_empty_final:
            return []
        message = pb.ModelStreamInferResponse()
        message.infer_response.id = entry.id
        message.infer_response.model_name = entry.request.model
        message.infer_response.model_version = entry.request.version
        message.infer_response.parameters[FINAL].bool_param = True
        return [message]

    def _fail(self, entry: _Open, error: ServingError) -> list[Any]:
        assert entry.request is not None
        entry.request.stream.cancel("its answer could not be sent")
        self._finish(entry, error)
        if self._errors_close and error.code is not Code.CANCELLED:
            self._fatal = error
            return []
        message = _error_message(entry, error)
        message.infer_response.model_name = entry.request.model
        message.infer_response.model_version = entry.request.version
        message.infer_response.parameters[FINAL].bool_param = True
        return [message]

    def _finish(self, entry: _Open, error: ServingError | None) -> None:
        with self._lock:
            if entry not in self._open:
                return
            was_full = len(self._open) >= _MAX_OPEN
            self._open.discard(entry)
        entry.is_done = True
        entry.release()
        if was_full:
            self._carrier.resume()
        if entry.request is not None:
            self._front.service.on_end(entry.request, error)


def _gone() -> ServingError:
    return ServingError(Code.CANCELLED, "the client has gone")


def _error_message(entry: _Open, error: ServingError) -> Any:
    message = pb.ModelStreamInferResponse(error_message=error.message)
    message.infer_response.id = entry.id
    return message
