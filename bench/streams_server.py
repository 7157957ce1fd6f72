"""The server that `bench.streams` measures: ours, over an engine whose model is a metronome, and a bare one beside it.

    python -m bench.streams_server PORT STREAMS GAP

`/v1/chat/completions` is all there is of Tidegate but the model: a token for every stream each GAP seconds, in a child
process of its own. `/raw` sends the same number of ready-made bytes at the same pace from a bare ASGI function.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop
from fastapi import FastAPI

from backends.api.model_config import ModelConfig
from backends.api.request import SamplingParams
from backends.lm.step import StepBatch, StepOutput
from backends.text.template import ChatTemplate
from gateway.browsers import BrowserGuard, rules_without_keys
from gateway.listener import HttpListener
from gateway.metrics import Metrics
from openai_api.routes import OpenAI
from scheduler.engine_client import EngineClient
from scheduler.engine_options import EngineOptions
from scheduler.engine_spec import EngineSpec, ProgressCallback
from scheduler.language_model import LanguageModel
from tests.unit.openai_api.scripted import CHATML, TOKENIZER, WORD

SERVER_CORE, CLIENT_CORE = 0, 1
MODEL = "metronome"
_MAX_LEN, _BLOCK = 4096, 16
_SAID = WORD[" hello"]


class Metronome:
    """A `ModelRunner` that says the same word to all, once a `gap`."""

    vocab_size = 400
    eos_token_ids = frozenset({399})
    max_model_len = _MAX_LEN
    block_size = _BLOCK
    fingerprint = "metronome"
    layered = None

    def __init__(self, rows: int, gap: float) -> None:
        self.num_blocks = rows * 64
        self._gap = gap
        self._next = 0.0

    def prepare(self, sampling: SamplingParams) -> None:
        """Nothing has to be."""

    def add(self, row: int, tokens: list[int], num_prompt: int, sampling: SamplingParams, seed: int) -> None:
        """Rows are all alike."""

    def remove(self, row: int) -> None:
        """The same."""

    def step(self, batch: StepBatch) -> StepOutput:
        now = time.monotonic()
        self._next = max(self._next + self._gap, now)
        time.sleep(self._next - now)
        return StepOutput([[_SAID] if samples else [] for samples in batch.samples.tolist()])

    def close(self) -> None:
        """Holds nothing."""


def metronome(folder: Path, parameters: Mapping[str, str], model_name: str, progress: ProgressCallback) -> Metronome:
    os.sched_setaffinity(0, {CLIENT_CORE})  # what is measured is the API process, on a core of its own
    return Metronome(int(parameters["max_num_seqs"]), float(parameters["gap"]))


class _Raw:
    """Bytes for everybody at once, once a `gap`."""

    def __init__(self, gap: float) -> None:
        self._gap = gap
        self._waiting: list[asyncio.Future[None]] = []

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(self._gap)
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        chunk, count = bytes(215), int(scope["query_string"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(count):
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
            await send({"type": "http.response.body", "body": b"data: {" + chunk + b"\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def serve(port: int, streams: int, gap: float) -> None:
    metrics = Metrics(list)
    parameters = {"max_num_seqs": str(streams), "max_num_batched_tokens": str(64 * streams), "gap": str(gap)}
    options = EngineOptions.from_parameters(parameters, MODEL)
    runner = "bench.streams_server:metronome"
    spec = EngineSpec(model_name=MODEL, folder=".", parameters=parameters, options=options, runner=runner)
    config = ModelConfig(MODEL, backend="llm")
    engine = EngineClient(spec, metrics.engines.observer(config, "1"))
    await engine.start()
    template = ChatTemplate(CHATML, TOKENIZER.special_tokens)
    model = LanguageModel(config, "1", engine, tokenizer=TOKENIZER, template=template, max_model_len=_MAX_LEN)
    openai = OpenAI(lambda name, version: model, lambda: [model])
    app = FastAPI(openapi_url=None)
    app.router.routes += openai.routes()
    raw = _Raw(gap)

    async def front(scope: Any, receive: Any, send: Any) -> None:
        await (raw if scope["path"] == "/raw" else app)(scope, receive, send)

    listener = HttpListener(BrowserGuard(front, rules_without_keys("127.0.0.1", (), ())), "127.0.0.1", port, "HTTP")
    await listener.start()
    beat = asyncio.create_task(raw.beat())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the client has gone
    beat.cancel()
    await openai.drain(0)
    await model.close()
    await listener.stop(0)


if __name__ == "__main__":
    os.sched_setaffinity(0, {SERVER_CORE})
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
