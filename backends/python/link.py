"""The model's process' end of the socket to the server."""

import os
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from backends.python.arena import Arena
from backends.python.frame_codec import PREFIX, decode, encode
from backends.python.frames import Free
from backends.python.packing import Packer, Unpacker

Handler = Callable[[Any, Unpacker], None]
_CHUNK = 1 << 16


class Link:
    """Any thread may send. Whoever waits for something reads, and handles what comes for the others meanwhile.

    So a model that only computes has no second thread, and one that asks `is_cancelled` reads what is there.
    When the server is gone, the process ends at once; for a process that the model forks it is gone from the start.
    """

    def __init__(self, sock: socket.socket, arena_in: Arena, arena_out: Arena) -> None:
        self.handlers: dict[type, Handler] = {Free: self._free}
        self.dropped: deque[Callable[[], tuple[Any, ...]]] = deque()  # makers of frames, from places that must not send
        self._socket = sock
        self._in = arena_in
        self._out = arena_out
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._writing = threading.Lock()
        self._turn = threading.Condition()
        self._is_read = False
        self._is_forked = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: tuple[Any, ...]) -> None:
        """A frame without tensors."""
        with self._writing:
            self._flush()
            self._write(encode(frame), [])

    def send_packed(self, make: Callable[[Packer], tuple[Any, ...]]) -> None:
        """The frame that `make` gives after packing its tensors."""
        with self._writing:
            self._flush()
            packer = Packer(self._out)
            frame = make(packer)
            self._write(encode(frame, packer.size), packer.buffers)

    def leave(self) -> None:
        """In a forked child, which must neither speak for its parent nor wait for locks that its parent's threads held."""
        ours, theirs = socket.socketpair()
        theirs.close()
        os.dup2(ours.fileno(), self._socket.fileno())
        ours.close()
        self._writing, self._turn, self._is_read = threading.Lock(), threading.Condition(), False
        self._is_forked = True

    def drop(self, make: Callable[[], tuple[Any, ...]]) -> None:
        """Send a frame soon, without ever waiting: for finalizers, which run in forked children too."""
        if self._is_forked:
            return
        self.dropped.append(make)
        if self._writing.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._writing.release()

    def wait(self, until: Callable[[], bool]) -> None:
        """Read until `until` holds, which only what is read can bring about."""
        while True:
            with self._turn:
                while self._is_read and not until():
                    self._turn.wait()
                if until():
                    return
                self._is_read = True
            try:
                self._read()
            finally:
                with self._turn:
                    self._is_read = False
                    self._turn.notify_all()

    def read_ready(self) -> None:
        """Read what is there, without waiting."""
        while True:
            with self._turn:
                if self._is_read or not self._poll.poll(0):
                    return
                self._is_read = True
            try:
                self._read()
            finally:
                with self._turn:
                    self._is_read = False
                    self._turn.notify_all()

    def _read(self) -> None:
        """Handle what has come, frames in whole: none is left where no event tells of it."""
        data = self._receive(_CHUNK)
        while data:
            while len(data) < PREFIX.size:
                data += self._receive(_CHUNK)
            kind, header_size, payload_size = PREFIX.unpack_from(data)
            middle, end = PREFIX.size + header_size, PREFIX.size + header_size + payload_size
            if len(data) < end:
                data = b"".join([data, *self._receive_all(end - len(data))])
            frame = decode(kind, memoryview(data)[PREFIX.size : middle])
            payload = bytearray(data[middle:end])  # a model may write into its inputs
            self.handlers[type(frame)](frame, Unpacker(memoryview(payload), self._in))
            data = data[end:]

    def _receive_all(self, size: int) -> Iterator[bytes]:
        while size > 0:
            data = self._receive(size)
            size -= len(data)
            yield data

    def _receive(self, most: int) -> bytes:
        try:
            data = self._socket.recv(most)
        except ConnectionError:
            data = b""
        if not data:
            self._end()
        return data

    # Under the write lock

    def _flush(self) -> None:
        while self.dropped:
            self._write(encode(self.dropped.popleft()()), [])
        released = self._in.released
        if released:
            self._write(encode(Free([released.popleft() for _ in range(len(released))])), [])

    def _write(self, head: bytes, buffers: list[Any]) -> None:
        try:
            if not buffers:
                self._socket.sendall(head)
            elif len(buffers) < 500:  # of the 1024 that the system takes at once
                self._write_all([head, *buffers])
            else:
                self._socket.sendall(b"".join([head, *buffers]))
        except ConnectionError:
            self._end()

    def _end(self) -> NoReturn:
        """The server is gone."""
        if self._is_forked:
            print("a process that the model forked cannot use pb_utils and ends here", file=sys.stderr, flush=True)
        os._exit(1)

    def _write_all(self, parts: list[Any]) -> None:
        sent = self._socket.sendmsg(parts)
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._socket.sendall(memoryview(part)[sent:])
                sent = 0

    def _free(self, frame: Free, _: Unpacker) -> None:
        with self._writing:
            for offset in frame.offsets:
                self._out.free(offset)
