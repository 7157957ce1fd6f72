"""The OpenAI face on a loopback port, as the gateway serves it, on a thread of its own."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import uvicorn
import uvloop
from fastapi import FastAPI

from gateway.http_protocol import HttpProtocol
from gateway.joined_writes import TurnEnd
from openai_api.options import OpenAIOptions
from openai_api.routes import OpenAI
from tests.unit.openai_api.face import Repository
from tests.unit.openai_api.scripted import ScriptedModel

T = TypeVar("T")


class WireServer:
    """Serves the models that tests put into `repository`; the newest of a name is found."""

    def __init__(self, options: OpenAIOptions) -> None:
        self.repository = Repository()
        self._options = options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def serve(self, model: ScriptedModel) -> ScriptedModel:
        self.repository.add(model)
        return model

    def call(self, function: Callable[[], Awaitable[T]], timeout: float = 20) -> T:
        """Run a coroutine function on the server's loop."""

        async def run() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout)

    def release(self, model: ScriptedModel, count: int = 1) -> None:
        """Let `count` tokens of a gated model go."""

        async def run() -> None:
            assert model.gate is not None
            for _ in range(count):
                model.gate.release()

        self.call(run)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.face = OpenAI(self.repository.find, self.repository.list, self._options)
        app = FastAPI(openapi_url=None)
        app.router.routes.extend(self.face.routes())
        protocol: Any = partial(HttpProtocol, turn_end=TurnEnd())
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", http=protocol))
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.loop.call_soon(self._ready.set)
        await self._server.serve(sockets=[listener])
        await self.face.drain(0)
        listener.close()


@contextmanager
def wire_server(**options: Any) -> Iterator[WireServer]:
    server = WireServer(OpenAIOptions(**options))
    server.start()
    try:
        yield server
    finally:
        server.stop()


class RawConnection:
    """A socket that speaks HTTP/1.1 itself, to see every byte."""

    def __init__(self, port: int, path: str, body: dict[str, Any], headers: str = "") -> None:
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data)
        self._received = b""

    def read_until(self, end: bytes) -> bytes:
        """Everything up to and with `end`; what there is when the server closes."""
        while end not in self._received:
            data = self.socket.recv(65536)
            if not data:
                break
            self._received += data
        return self._received

    def close(self) -> None:
        self.socket.close()


def unchunked(raw: bytes) -> tuple[bytes, bytes, bool]:
    """(head, body, whether the body is complete) of a chunked response."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        if length == 0:
            return head, body, size == b"0"
        body, rest = body + rest[:length], rest[length + 2 :]
    return head, body, False
