"""ModelStreamInfer: any mix of requests and their answers on one call (triton spec 2.3)."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc
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


def stream_infer(front: Front, messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """Answers to any mix of requests. Those of ordinary models come in request order, decoupled ones as they come."""
    session = _Session(front, context)
    if not context.add_callback(session.cancel):
        session.cancel()
    threading.Thread(target=session.read, args=(messages,), name="grpc_stream", daemon=True).start()
    return session.answers()


class _Session:
    """One ModelStreamInfer call: a thread reads requests, the call's own thread writes answers.

    `_ready` carries from the models' threads and the reader what the writer should look at: an open request that has
    something to read, None when the client sends no more, `self` when the call is over.
    """

    def __init__(self, front: Front, context: grpc.ServicerContext) -> None:
        self._front = front
        self._context = context
        metadata = {str(name): value for name, value in context.invocation_metadata()}
        self._errors_close = metadata.get("triton_grpc_error") == "true"
        self._ready: SimpleQueue[_Open | _Session | None] = SimpleQueue()
        self._room = threading.Semaphore(_MAX_OPEN)
        self._lock = threading.Lock()
        self._open: set[_Open] = set()
        self._in_order: deque[_Open] = deque()  # of ordinary models, oldest first
        self._is_over = False
        self._fatal: ServingError | None = None  # what ends the call, where the client asked for that

    # The reader's thread

    def read(self, messages: Iterator[Any]) -> None:
        try:
            for message in messages:
                self._room.acquire()
                self._start(message)
        except Exception as error:
            # grpc ends the iteration by raising once the call is over
            log.debug("a stream's requests ended: %s", error)
        finally:
            self._ready.put(None)

    def _start(self, message: Any) -> None:
        entry = _Open(message.id)
        try:
            self._front.admit("inference", self._context)
            entry.release = self._front.enter(message, self._context)
            model, request, form = accept(self._front, message, self._context, allow_decoupled=True)
        except Exception as error:
            entry.refusal = as_serving_error(error)
            self._register(entry)
            self._ready.put(entry)
            return
        request.times.received = time.monotonic()
        entry.request, entry.form, entry.decoupled = request, form, model.config.decoupled
        entry.wants_empty_final = EMPTY_FINAL in message.parameters and message.parameters[EMPTY_FINAL].bool_param
        if self._register(entry):
            self._front.submit(model, request)
            request.stream.notify(partial(self._ready.put, entry))
        else:
            self._finish(entry, _gone())

    def _register(self, entry: _Open) -> bool:
        """Whether the call is still on."""
        with self._lock:
            self._open.add(entry)
            if not entry.decoupled:
                self._in_order.append(entry)
            return not self._is_over

    # grpc's thread, when the call ends in any way

    def cancel(self) -> None:
        with self._lock:
            self._is_over = True
            entries = list(self._open)
        for entry in entries:
            if entry.request is not None:
                entry.request.stream.cancel("the client has gone")
        self._room.release(_MAX_OPEN)  # a reader that waits for room may end
        self._ready.put(self)

    # The call's own thread

    def answers(self) -> Iterator[Any]:
        is_reading = True
        try:
            while is_reading or self._open:
                entry = self._ready.get()
                if entry is self:
                    break
                if entry is None:
                    is_reading = False
                elif isinstance(entry, _Open):
                    yield from self._advance(entry)
                if self._fatal is not None:
                    raise self._fatal
        finally:
            # what is still open has been cancelled, and nobody else will see its end
            for left in list(self._open):
                self._finish(left, _gone())

    def _advance(self, entry: _Open) -> list[Any]:
        """What may be sent now that `entry` has something to read."""
        messages = self._read_entry(entry)
        if not entry.is_done and entry.request is not None:
            entry.request.stream.notify(partial(self._ready.put, entry))
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
            self._open.discard(entry)
        entry.is_done = True
        entry.release()
        self._room.release()
        if entry.request is not None:
            self._front.service.on_end(entry.request, error)


def _gone() -> ServingError:
    return ServingError(Code.CANCELLED, "the client has gone")


def _error_message(entry: _Open, error: ServingError) -> Any:
    message = pb.ModelStreamInferResponse(error_message=error.message)
    message.infer_response.id = entry.id
    return message
