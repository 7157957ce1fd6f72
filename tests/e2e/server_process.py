"""A real `tidegate serve` as a child process, on ports of the system's choice, watched as an operator would."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
from prometheus_client.parser import text_string_to_metric_families

START = 240.0  # seconds a start may take where kernels are compiled first, beside other work
LONG = {"prompt": "Numbers: 1 2 3 4 5 6 7 8", "max_tokens": 6000, "temperature": 0, "ignore_eos": True}


def eventually(holds: Callable[[], object], within: float = 5.0) -> bool:
    """Whether `holds` comes true before the deadline."""
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class ServerProcess:
    """Owns the process and its log until `stop`."""

    def __init__(self, repository: Path, *flags: str) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway", "serve", "--model-repository", str(repository)),
                *("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *flags),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as log:
            self.lines.extend(log)

    def said(self, text: str) -> bool:
        return any(text in line for line in list(self.lines))

    def address(self, what: str) -> str:
        """host:port of a service, once the log names it."""
        found: list[str] = []

        def is_named() -> bool:
            found.extend(re.findall(rf"Started {what} at (\S+)", "".join(self.lines)))
            return bool(found) or self._process.poll() is not None

        assert eventually(is_named, START), "the server opened no port"
        assert found, "the server ended at its start: " + "".join(self.lines)
        return found[0]

    @property
    def url(self) -> str:
        return f"http://{self.address('HTTPService')}"

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key="-", max_retries=0, timeout=120)

    @property
    def pid(self) -> int:
        return self._process.pid

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=20)

    def is_ready(self) -> bool:
        return self.get("/v2/health/ready").status_code == 200

    def engine(self) -> psutil.Process:
        """The one engine child there is."""
        children = psutil.Process(self.pid).children()
        (found,) = [child for child in children if "scheduler.engine_process" in " ".join(child.cmdline())]
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        text = httpx.get(f"http://{self.address('Metrics Service')}/metrics", timeout=20).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    @property
    def num_running(self) -> float:
        return self.metric("vllm:num_requests_running")

    @property
    def num_waiting(self) -> float:
        return self.metric("vllm:num_requests_waiting")

    def is_idle(self) -> bool:
        """No request runs or waits, and no block is held."""
        return not (self.num_running or self.num_waiting or self.metric("vllm:kv_cache_usage_perc"))

    def post(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request and leave it to the caller what becomes of its connection."""
        host, port = self.address("HTTPService").rsplit(":", 1)
        data = json.dumps(body).encode()
        # the answer's end is the connection's, so that a reader needs no HTTP
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        connection = socket.create_connection((host, int(port)), 20)
        connection.sendall(head.encode() + data)
        return connection

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def exit_code(self, within: float) -> int:
        return self._process.wait(within)

    def stop(self) -> None:
        if "openai" in vars(self):
            self.openai.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(20)
