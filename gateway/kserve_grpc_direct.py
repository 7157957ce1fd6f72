"""ModelInfer without a thread for each call (see `kserve_grpc_core`)."""

import logging
import time
from concurrent.futures import Executor
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from backends.api.errors import ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from gateway.admission import Release, nothing_to_release
from gateway.errors import as_serving_error
from gateway.kserve_grpc_core import BUSY, LARGE, NOT_READABLE, OK, Call, DirectCalls, Status, status_of
from gateway.kserve_grpc_direct_stream import StreamCall
from gateway.kserve_grpc_front import Front
from gateway.kserve_grpc_infer import accept, deadline_after
from gateway.kserve_json_answer import AnswerForm
from gateway.kserve_proto import encode_infer
from gateway.kserve_service import complete, no_answer
from gateway.kserve_tensors import num_bytes

log = logging.getLogger(__name__)
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_NO_MESSAGE = Status(grpc.StatusCode.UNIMPLEMENTED, f'"{_INFER}" requires exactly one request message.')


def direct_calls(server: grpc.Server, front: Front, pool: Executor, max_concurrent: int) -> DirectCalls | None:
    """ModelInfer and ModelStreamInfer; None where this grpc is built otherwise."""
    try:
        return DirectCalls(server, front, pool, max_concurrent, {_INFER: InferCall, _STREAM: StreamCall})
    except AttributeError as error:
        log.info("infer calls are served by a thread each: %s", error)
        return None


class InferCall(Call):
    """One ModelInfer call: one message, one answer. Watched only while a model is at it, which a quick one has done at once."""

    def __init__(self, calls: DirectCalls, event: Any) -> None:
        super().__init__(calls, event)
        self._received = time.monotonic()
        self._deadline = deadline_after(self._received, event.call_details.deadline - time.time())
        self._request: InferenceRequest | None = None
        self._form: AnswerForm | None = None
        self._release: Release = nothing_to_release

    # On the polling thread

    def start(self) -> None:
        self.read()

    def client_left(self) -> None:
        assert self._request is not None
        self._request.stream.cancel("the client has gone")

    def received(self, content: bytes | None) -> None:
        if self.calls.is_full:
            self.finish(BUSY)
        elif content is None:
            self.finish(_NO_MESSAGE)
        elif len(content) > LARGE:
            self.calls.aside(self._infer, content)
        else:
            self._infer(content)

    # On the polling thread, or the pool's

    def _infer(self, content: bytes) -> None:
        front = self.calls.front
        try:
            front.admit("inference", self)
            self.authenticate()
            message = pb.ModelInferRequest.FromString(content)
            self._release = front.enter(message, self)
            model, request, self._form = accept(front, message, self, allow_decoupled=False)
        except DecodeError:
            self._finish(NOT_READABLE)
            return
        except Exception as error:
            self._finish(status_of(error))
            return
        request.times.received = self._received
        request.deadline = self._deadline
        self._request = request
        front.submit(model, request)
        request.stream.notify(self._on_answer)
        if not request.stream.ended:
            self.watch()

    # On the thread of whoever ends the request

    def _on_answer(self) -> None:
        try:
            self._read_answer()
        except Exception:  # it would end the model's thread
            log.exception("a gRPC call could not be answered")

    def _read_answer(self) -> None:
        assert self._request is not None
        try:
            responses = self._request.stream.poll()
            if not responses:
                raise no_answer(self._request)
            response = complete(responses[0], self._request)
        except Exception as error:
            self._fail(error)
            return
        if num_bytes(response.outputs) > LARGE:
            self.calls.aside(self._answer, response)
        else:
            self._answer(response)

    def _answer(self, response: InferenceResponse) -> None:
        assert self._form is not None
        try:
            content = encode_infer(response, self._form).SerializeToString()
        except Exception as error:
            self._fail(error)
            return
        self._finish(OK, content)
        self._report(None)

    def _fail(self, error: Exception) -> None:
        failure = as_serving_error(error)
        self._finish(status_of(failure))
        self._report(failure)

    def _report(self, error: ServingError | None) -> None:
        assert self._request is not None
        self._request.stream.cancel("it has been answered")  # nothing if it has ended, as it should have
        self.calls.front.service.on_end(self._request, error)

    def _finish(self, status: Status, content: bytes | None = None) -> None:
        """The one answer of a call, with which it gives back what its key was charged."""
        self._release()
        self.finish(status, content)
