"""Language models, ensembles and sequences over real HTTP and gRPC, with Triton's own clients."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import uvicorn
import uvloop
from tritonclient.utils import InferenceServerException

from backends.api.base import LiveModel
from backends.api.model_config import Ensemble, EnsembleStep, ModelConfig, SequenceBatching, TensorSpec
from gateway.kserve_grpc import GrpcOptions, GrpcServer
from gateway.kserve_service import Service
from model_repository.pbtxt import to_json, to_proto
from scheduler.ensemble import load_ensemble
from scheduler.language_model import LanguageModel
from scheduler.load import start_tensor_model
from tests.fakes.kserve import FakeRepository, application
from tests.unit.openai_api.scripted import TOKENIZER, says
from tests.unit.scheduler.tensor_fakes import ALARM, FakeBackend, echo
from tests.unit.scheduler.test_language_face import ScriptedEngine
from tests.unit.scheduler.test_sequence_model import OLDEST, SUM, adds_up, config

PATIENCE = 20.0


class Pipelines:
    """A KServe server whose models live on its own event loop: `chat`, `pipeline` (echo before it), `chain` and `seq`."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        repository = FakeRepository()
        models = await _models(repository)
        service = Service(repository, to_json, to_proto)
        grpc_server = GrpcServer(service, asyncio.get_running_loop(), GrpcOptions(port=0))
        self.grpc = f"127.0.0.1:{grpc_server.start()}"
        self._server = uvicorn.Server(uvicorn.Config(application(service), port=0, log_level="warning", lifespan="off"))
        serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        self.http = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        self._ready.set()
        await serving
        await grpc_server.stop(0.5)
        for model in reversed(models):
            await model.close()


async def _models(repository: Any) -> list[LiveModel]:
    def add(model: Any) -> LiveModel:
        repository.add(model)
        return model  # type: ignore[no-any-return]

    async def tensor_model(execute: Any, model_config: ModelConfig) -> LiveModel:
        folder = Path("/nowhere/warmup")
        return add(await start_tensor_model(FakeBackend(execute), model_config, "1", folder, alarm=ALARM))

    text = ModelConfig(
        "echo_text",
        backend="fake",
        inputs=(TensorSpec("IN", "BYTES", (1,)),),
        outputs=(TensorSpec("OUT", "BYTES", (1,)),),
    )
    numbers = replace(config(), name="echo_numbers", sequence_batching=None)
    sequences = SequenceBatching(strategy=OLDEST, states=(SUM,))
    models = [
        add(
            LanguageModel(
                ModelConfig("chat", backend="llm"),
                "1",
                ScriptedEngine(says("one two")),
                tokenizer=TOKENIZER,
                template=None,
                max_model_len=64,
            )
        ),
        await tensor_model(echo, text),
        await tensor_model(echo, numbers),
        await tensor_model(adds_up, replace(config(), sequence_batching=sequences)),
    ]
    pipeline = ModelConfig(
        "pipeline",
        platform="ensemble",
        inputs=(TensorSpec("PROMPT", "BYTES", (1,)), TensorSpec("STREAM", "BOOL", (1,), optional=True)),
        outputs=(TensorSpec("TEXT", "BYTES", (-1,)),),
        ensemble=Ensemble(
            (
                EnsembleStep("echo_text", -1, {"IN": "PROMPT"}, {"OUT": "clean"}),
                EnsembleStep("chat", -1, {"text_input": "clean", "stream": "STREAM"}, {"text_output": "TEXT"}),
            )
        ),
    )
    chain = replace(
        numbers,
        name="chain",
        backend="",
        platform="ensemble",
        instance_groups=(),
        ensemble=Ensemble(
            (
                EnsembleStep("echo_numbers", -1, {"IN": "IN"}, {"OUT": "mid"}),
                EnsembleStep("seq", -1, {"IN": "mid"}, {"OUT": "OUT"}),
            )
        ),
    )

    def find_step(name: str, version: str, *, namespace: str) -> LiveModel:
        return repository.find(name, version)  # type: ignore[no-any-return]

    return [*models, *(add(load_ensemble(each, "1", find_step)) for each in (pipeline, chain))]


@pytest.fixture(scope="module")
def server() -> Iterator[Pipelines]:
    server = Pipelines()
    yield server
    server.stop()


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


def bytes_input(name: str, value: str) -> Any:
    given = triton_grpc.InferInput(name, [1], "BYTES")
    given.set_data_from_numpy(np.array([value.encode()], dtype=object))
    return given


def stream_infer(server: Pipelines, model: str, requests: list[dict[str, Any]]) -> list[Any]:
    """What comes for all requests of one gRPC stream: results and errors."""
    came: SimpleQueue[Any] = SimpleQueue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: came.put(error or result))
        for request in requests:
            client.async_stream_infer(model, **request)
        client.stop_stream()
    return [came.get(timeout=PATIENCE) for _ in range(came.qsize())]


def test_a_language_model_says_what_it_takes(server: Pipelines) -> None:
    metadata = httpx.get(f"{server.http}/v2/models/chat").json()
    assert [each["name"] for each in metadata["inputs"]][:3] == ["text_input", "stream", "sampling_parameters"]
    assert [each["name"] for each in metadata["outputs"]][:2] == ["text_output", "finish_reason"]
    assert httpx.get(f"{server.http}/v2/models/chat/config").json()["model_transaction_policy"] == {"decoupled": True}


def test_generate_takes_sampling_values_as_parameters(server: Pipelines) -> None:
    asked = {"text_input": "x: ", "parameters": {"stream": False, "temperature": 0, "max_tokens": 3}}
    answer = httpx.post(f"{server.http}/v2/models/chat/generate", json=asked)
    assert answer.json() == {"text_output": "x: one", "model_name": "chat", "model_version": "1"}
    asked = {"text_input": "x", "sampling_parameters": '{"temprature": 1}'}
    answer = httpx.post(f"{server.http}/v2/models/chat/generate", json=asked)
    assert answer.status_code == 400
    assert "unknown field `temprature`" in answer.json()["error"]


def test_generate_stream_sends_a_piece_an_event(server: Pipelines) -> None:
    asked = {"text_input": "x: ", "stream": True, "return_finish_reason": True}
    pieces = events(httpx.post(f"{server.http}/v2/models/chat/generate_stream", json=asked))
    assert "".join(piece["text_output"] for piece in pieces) == "one two"
    assert pieces[-1]["finish_reason"] == "stop"


def test_a_grpc_stream_marks_the_last_piece(server: Pipelines) -> None:
    stream = triton_grpc.InferInput("stream", [1], "BOOL")
    stream.set_data_from_numpy(np.array([True]))
    results = stream_infer(server, "chat", [{"inputs": [bytes_input("text_input", "x"), stream]}])
    assert b"".join(result.as_numpy("text_output")[0] for result in results) == b"one two"
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result in results]
    assert finals == [False] * (len(results) - 1) + [True]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_language_model_may_be_a_step_of_an_ensemble(server: Pipelines, streamed: bool) -> None:
    asked = {"PROMPT": "say: ", "STREAM": streamed}
    pieces = events(httpx.post(f"{server.http}/v2/models/pipeline/generate_stream", json=asked))
    assert "".join(piece["TEXT"] for piece in pieces) == ("one two" if streamed else "say: one two")
    assert len(pieces) == (8 if streamed else 1)
    assert {piece["model_name"] for piece in pieces} == {"pipeline"}


def test_an_error_of_a_step_names_the_ensemble(server: Pipelines) -> None:
    answer = httpx.post(f"{server.http}/v2/models/pipeline/generate", json={"PROMPT": "x" * 64})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("in ensemble 'pipeline', This model's maximum context length is 64")


def number(value: float) -> list[Any]:
    given = triton_grpc.InferInput("IN", [1, 1], "FP32")
    given.set_data_from_numpy(np.array([[value]], np.float32))
    return [given]


def sequence(length: int, sequence_id: int | str) -> list[dict[str, Any]]:
    return [
        {
            "inputs": number(1),
            "sequence_id": sequence_id,
            "sequence_start": place == 0,
            "sequence_end": place == length - 1,
        }
        for place in range(length)
    ]


@pytest.mark.parametrize("model", ["seq", "chain"])
def test_a_sequence_on_a_grpc_stream_is_answered_in_order(server: Pipelines, model: str) -> None:
    if model == "seq":
        results = stream_infer(server, model, sequence(12, 5))
        assert [result.as_numpy("OUT").item() for result in results] == [*range(1, 13)]
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for place, asked in enumerate(sequence(5, "a string"), start=1):
            assert client.infer(model, **asked).as_numpy("OUT").item() == place


@pytest.mark.parametrize(("model", "prefix"), [("seq", ""), ("chain", "in ensemble 'chain', ")])
def test_a_request_outside_its_sequence_is_refused_with_tritons_words(
    server: Pipelines, model: str, prefix: str
) -> None:
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(model, number(1), sequence_id=99)
        text = "inference request for sequence 99 to model 'seq' must specify the START flag on the first request of the sequence"
        assert (refused.value.status(), refused.value.message()) == ("StatusCode.INVALID_ARGUMENT", prefix + text)
        with pytest.raises(InferenceServerException, match="must specify a non-zero or non-empty correlation ID"):
            client.infer(model, number(1))
