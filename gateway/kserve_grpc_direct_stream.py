"""ModelStreamInfer without threads of its own (see `kserve_grpc_core`)."""

import logging
from collections import deque
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from backends.api.errors import ServingError
from gateway.kserve_grpc_core import BUSY, LARGE, NOT_READABLE, OK, Call, DirectCalls, Ended, Status, status_of
from gateway.kserve_grpc_stream import StreamSession

log = logging.getLogger(__name__)


class StreamCall(Call):
    """One ModelStreamInfer call. One message is under way to the client at a time, and only then is the next made: a client
    that reads slowly holds its models back.

    `_is_busy` is held by the one thread that makes and sends messages, from `_advance` until what it sent has left.
    """

    def __init__(self, calls: DirectCalls, event: Any) -> None:
        super().__init__(calls, event)
        self._session = StreamSession(calls.front, self, self)
        self._outbox: deque[Any] = deque()
        self._is_busy = False
        self._is_paused = False  # no message has been asked for, for want of room
        self._end: Status | None = None  # decided, and sent once it is nobody's turn
        self._has_ended = False
        self._was_large = False

    def start(self) -> None:
        try:
            self.calls.front.admit("inference", self)
            self.authenticate()
        except ServingError as error:
            self._end = status_of(error)
        if self.calls.is_full:
            self._end = BUSY
        self.watch()
        self.read()
        if self._end is not None:
            self.wake()

    # Requests: one at a time, on the polling thread or the pool's

    def received(self, content: bytes | None) -> None:
        if content is None:
            self._session.receive_end()
        elif len(content) > LARGE:
            self.calls.aside(self._receive, content)
        else:
            self._receive(content)

    def _receive(self, content: bytes) -> None:
        if self._has_ended:
            return
        try:
            self._session.receive(pb.ModelInferRequest.FromString(content))
        except DecodeError:
            self._end = NOT_READABLE
            self.wake()
            return
        with self._lock:
            self._is_paused = not self._session.has_room
            if self._is_paused:
                return
        self.read()

    def resume(self) -> None:
        with self._lock:
            if not self._is_paused:
                return
            self._is_paused = False
        self.read()

    def client_left(self) -> None:
        self._session.cancel()

    # Answers: on the thread of whoever has one, or the polling thread when the last has left

    def wake(self) -> None:
        if self._was_large:
            self.calls.aside(StreamCall._write, self)
        else:
            self._write()

    def _write(self) -> None:
        try:
            while self._take_turn():
                if self._advance():
                    return  # the turn ends when the message has left
                self._is_busy = False
        except Exception:  # it would end the model's thread
            log.exception("a gRPC stream could not be answered")

    def _take_turn(self) -> bool:
        """Whether there is something to do, which from here on is this thread's."""
        with self._lock:
            if self._is_busy or self._has_ended or not (self._end or self._outbox or self._session.has_news):
                return False
            self._is_busy = True
            return True

    def _advance(self) -> bool:
        """Send a message or the end of the call, if there is one; whether something was sent."""
        if not self._outbox and self._end is None:
            try:
                self._outbox.extend(self._session.next_messages() or ())
            except ServingError as error:
                self._end = status_of(error)
            if not self._outbox and self._session.is_over:
                self._end = self._end or OK
        if self._end is not None:
            self._has_ended = True
            self._session.close()
            self.finish(self._end)
            return True
        if not self._outbox:
            return False
        content = self._outbox.popleft().SerializeToString()
        self._was_large = len(content) > LARGE
        self.send(content, self._on_sent)
        return True

    def _on_sent(self, event: Any) -> Ended:
        self._is_busy = False
        self.wake()
        return self.ended(event)
