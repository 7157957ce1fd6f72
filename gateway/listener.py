"""An HTTP port: uvicorn on our event loop, under our signals."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from functools import partial
from typing import Any

import uvicorn

from backends.api.errors import Code, ServingError
from gateway.http_protocol import DirectCalls, HttpProtocol
from gateway.joined_writes import TurnEnd


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: stopping is decided in `gateway/app.py`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpListener:
    """Serves one ASGI app on one port from `start` to `stop`."""

    def __init__(
        self,
        app: Any,
        address: str,
        port: int,
        what: str,
        tls: ssl.SSLContext | None = None,
        direct: DirectCalls | None = None,
        *,
        reuse_port: bool = False,
    ) -> None:
        self._what = what
        self._address = address
        self._port = port
        self._reuse_port = reuse_port
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http=partial(HttpProtocol, turn_end=TurnEnd(), direct=direct),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,  # nothing here looks at who called
                timeout_keep_alive=75,
                backlog=2048,
                ssl_context_factory=None if tls is None else lambda config, default: tls,
            )
        )

    @property
    def url(self) -> str:
        """`address:port`, with the port that was taken when 0 was asked for."""
        host, port = self._socket.getsockname()[:2] if self._socket else (self._address, self._port)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """Return when the port accepts connections. Raises ServingError(UNAVAILABLE) when it can't be taken."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, self._reuse_port)
        try:
            listening.bind((self._address, self._port))
        except OSError as error:
            listening.close()
            place = f"{self._address}:{self._port}"
            raise ServingError(
                Code.UNAVAILABLE, f"failed to start {self._what}: cannot listen on {place}: {error.strerror}"
            ) from None
        self._socket = listening
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name=self._what)
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()

    async def stop(self, grace: float) -> None:
        """Take no more connections, wait up to `grace` seconds for answers under way, then close what is left."""
        if self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace))
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
