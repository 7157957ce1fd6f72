"""ModelStreamInfer on grpc's threads, where it cannot go around them: one reads requests, the call's own writes answers."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from gateway.kserve_grpc_front import Front
from gateway.kserve_grpc_stream import StreamSession

log = logging.getLogger(__name__)


class _Threads:
    """Where the two wait."""

    def __init__(self) -> None:
        self.written = threading.Semaphore(0)
        self.room = threading.Semaphore(0)

    def wake(self) -> None:
        self.written.release()

    def resume(self) -> None:
        self.room.release()


def stream_infer(front: Front, messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    threads = _Threads()
    session = StreamSession(front, context, threads)
    if not context.add_callback(session.cancel):
        session.cancel()
    threading.Thread(target=_read, args=(session, threads, messages), name="grpc_stream", daemon=True).start()
    return _answers(session, threads)


def _read(session: StreamSession, threads: _Threads, messages: Iterator[Any]) -> None:
    try:
        for message in messages:
            session.receive(message)
            while not session.has_room:
                threads.room.acquire()
    except Exception as error:
        # grpc ends the iteration by raising once the call is over
        log.debug("a stream's requests ended: %s", error)
    finally:
        session.receive_end()


def _answers(session: StreamSession, threads: _Threads) -> Iterator[Any]:
    try:
        while True:
            messages = session.next_messages()
            if messages is not None:
                yield from messages
            elif session.is_over:
                return
            else:
                threads.written.acquire()
    finally:
        session.close()
