"""The part of a Redis server that a response cache needs, on loopback: GET, SET and AUTH over RESP2."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


class RespServer(socketserver.ThreadingTCPServer):
    """`values` is what it keeps. With a `password` it wants that first."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, password: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.values: dict[bytes, bytes] = {}
        self.password = password.encode()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Handler(socketserver.StreamRequestHandler):
    server: RespServer

    def handle(self) -> None:
        is_in = not self.server.password
        while (command := _read(self.rfile)) is not None:
            name, *arguments = command
            if name.upper() == b"AUTH":
                is_in = arguments[-1] == self.server.password
                self.wfile.write(b"+OK\r\n" if is_in else b"-WRONGPASS invalid username-password pair\r\n")
            elif not is_in:
                self.wfile.write(b"-NOAUTH Authentication required.\r\n")
            elif name.upper() == b"GET":
                value = self.server.values.get(arguments[0])
                self.wfile.write(b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value))
            elif name.upper() == b"SET":
                self.server.values[arguments[0]] = arguments[1]
                self.wfile.write(b"+OK\r\n")
            elif name.upper() == b"CLIENT":  # the library introduces itself
                self.wfile.write(b"+OK\r\n")
            else:
                self.wfile.write(b"-ERR unknown command\r\n")


def _read(file: BinaryIO) -> list[bytes] | None:
    """A command: an array of bulk strings; None at the end."""
    head = file.readline()
    if not head:
        return None
    parts = []
    for _ in range(int(head[1:])):
        size = int(file.readline()[1:])
        parts.append(file.read(size))
        file.read(2)
    return parts


@contextmanager
def resp_server(password: str = "") -> Iterator[RespServer]:
    with RespServer(password) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
