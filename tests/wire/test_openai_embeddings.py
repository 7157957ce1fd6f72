"""Embeddings through the `openai` client over loopback, and what becomes of those whose client leaves."""

import asyncio
import base64
import threading
from typing import Any

import numpy as np
import openai
import pytest

from tests.fakes.pooling_runner import FakePoolingRunner, expected_vector, fake_model, toy_tokenizer
from tests.wire.openai_server import RawConnection, wire_server

TEXTS = ["tide", "a", "the moon"]


def wanted(text: str) -> list[float]:
    (row,) = toy_tokenizer().encode([text])
    return expected_vector(*row).tolist()


class Held:
    """A runner that waits in its first batch until it is told to go on."""

    def __init__(self) -> None:
        self.runner = FakePoolingRunner(self._wait)
        self.is_held, self.release = threading.Event(), threading.Event()
        self.texts: list[list[int]] = []

    def _wait(self, rows: Any) -> None:
        self.texts += [list(row.tokens) for row in rows]
        self.is_held.set()
        assert self.release.wait(20)


@pytest.fixture(scope="module")
def server():
    with wire_server() as running:
        yield running


def serve(server, **changes: Any):
    async def make():
        return fake_model(**changes)

    model = server.call(make)
    server.repository.add(model)
    return model


@pytest.fixture(scope="module")
def model(server):
    found = serve(server)
    yield found
    server.call(found.close)


def test_the_clients_base64_and_floats_are_the_same_numbers_in_order(server, model):
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        default = client.embeddings.create(model="emb", input=TEXTS)
        floats = client.embeddings.create(model="emb", input=TEXTS, encoding_format="float")
        raw = client.embeddings.create(model="emb", input=TEXTS, encoding_format="base64")
        tokens = client.embeddings.create(model="emb", input=[[1, 2], [3]])
    vectors = [wanted(text) for text in TEXTS]
    assert [entry.embedding for entry in default.data] == [entry.embedding for entry in floats.data] == vectors
    assert [np.frombuffer(base64.b64decode(entry.embedding), "<f4").tolist() for entry in raw.data] == vectors
    assert [entry.embedding for entry in tokens.data] == [
        expected_vector(ids, len(ids)).tolist() for ids in ([1, 2], [3])
    ]
    assert default.usage.prompt_tokens == default.usage.total_tokens == sum(len(text) + 2 for text in TEXTS)


def test_the_clients_exceptions_carry_code_and_param(server, model):
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.embeddings.create(model="emb", input=["a", ""])
        with pytest.raises(openai.NotFoundError) as absent:
            client.embeddings.create(model="nope", input="a")
    assert (bad.value.code, bad.value.param) == ("invalid_value", "input[1]")
    assert (absent.value.code, absent.value.param) == ("model_not_found", "model")


def test_texts_whose_client_left_are_never_computed(server):
    held = Held()
    model = serve(server, name="held", runner=held.runner)
    first = RawConnection(server.port, "/v1/embeddings", {"model": "held", "input": "a"})
    try:
        assert held.is_held.wait(20)
        second = RawConnection(server.port, "/v1/embeddings", {"model": "held", "input": "b"})
        server.call(lambda: until(lambda: num_open(model) == 2))
        second.close()
        server.call(lambda: until(lambda: num_open(model) == 1))
        held.release.set()
        assert b"200 OK" in first.read_until(b"embedding")
    finally:
        held.release.set()
        first.close()
        server.call(model.close)
    assert held.texts == [list(toy_tokenizer().encode(["a"])[0].tokens)]


def num_open(model: Any) -> int:
    return int(model.engine.load.num_waiting + model.engine.load.num_running)


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)
