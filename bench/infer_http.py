"""HTTP load: `wrk` for closed loops where it is installed, else a client of our own on raw sockets."""

import asyncio
import json
import shutil
import tempfile
from math import ceil
from pathlib import Path
from typing import Any

from bench.infer_requests import Body, Target

# a wrk script: the body comes from a file, the numbers leave as one line of JSON (microseconds)
_SCRIPT = """
local file = io.open({body}, "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
{headers}
done = function(summary, latency, requests)
  local e = summary.errors
  print(string.format('{{"requests": %d, "us": %d, "p50": %d, "p90": %d, "p99": %d, "max": %d, "errors": %d}}',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(90), latency:percentile(99),
    latency.max, e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


async def run_wrk(target: Target, body: Body, clients: int, seconds: float) -> dict[str, float]:
    """One closed-loop run by wrk with one thread; whole seconds."""
    with tempfile.TemporaryDirectory() as name:
        content, script = Path(name) / "body", Path(name) / "load.lua"
        content.write_bytes(body.content)
        headers = "\n".join(
            f"wrk.headers[{json.dumps(key)}] = {json.dumps(value)}" for key, value in body.headers.items()
        )
        script.write_text(_SCRIPT.format(body=json.dumps(str(content)), headers=headers))
        command = ("wrk", "-t1", f"-c{clients}", f"-d{ceil(seconds)}s", "-s", str(script))
        process = await asyncio.create_subprocess_exec(
            *command, f"http://{target.http}{body.path}", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    counted = json.loads(output.decode().splitlines()[-1])
    good = counted["requests"] - counted["errors"]
    return {
        "requests": counted["requests"],
        "requests_per_s": good / counted["us"] * 1e6,
        **{f"{name}_ms": counted[name] / 1000 for name in ("p50", "p90", "p99", "max")},
        "errors": counted["errors"],
    }


class HttpConnection(asyncio.Protocol):
    """A connection that writes the same bytes again and again and reads just enough of what comes back."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self._missing = -1  # bytes of the body still to come; -1 before its head is complete
        self._status = b""
        self._answer: asyncio.Future[str] | None = None
        self._transport: Any = None

    @classmethod
    async def open(cls, target: Target, body: Body) -> "HttpConnection":
        host, _, port = target.http.rpartition(":")
        headers = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
        head = (
            f"POST {body.path} HTTP/1.1\r\nHost: {target.http}\r\n{headers}Content-Length: {len(body.content)}\r\n\r\n"
        )
        connection = cls(head.encode() + body.content)
        await asyncio.get_running_loop().create_connection(lambda: connection, host, int(port))
        return connection

    async def call(self) -> str:
        if self._transport is None:
            return "the connection is closed"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        return await self._answer

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(f"the server closed the connection: {exc}")

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._missing < 0 and not self._read_head():
            return
        if len(self._received) >= self._missing:
            self._received.clear()
            self._missing = -1
            self._end("" if self._status == b"200" else f"status {self._status.decode()}")

    def _read_head(self) -> bool:
        """Whether the head is complete; leaves the body in `_received`. Answers must have a Content-Length."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._received[:end]).lower()
        self._status = head[9:12]
        _, _, rest = head.partition(b"content-length:")
        self._missing = int(rest.partition(b"\r\n")[0])
        del self._received[: end + 4]
        return True

    def _end(self, error: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(error)
