"""The whole HTTP front on a loopback port, for browsers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from tests.fakes.front import FrontApp


@contextmanager
def serving(front: FrontApp) -> Iterator[str]:
    """Serve `front` from a thread's own event loop; gives the URL."""
    config = uvicorn.Config(front.app, port=0, log_level="warning", lifespan="off")
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            started.set()

    server = Server(config)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
