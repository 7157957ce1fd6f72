"""Models that embed and score, served as users serve them: OpenAI's client, Triton's clients, an ensemble."""

import asyncio
import json
import os
import signal

import httpx
import numpy as np
import openai
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from bench import embed
from tests.e2e.server_process import ServerProcess, eventually
from tests.models.pooling import MAX_LEN, reference_score, reference_vector, write_bert

pytestmark = pytest.mark.slow
TEXTS = ["when is high tide?", "a", "the moon, 2 times a day.", "zz top"] * 5
ENSEMBLE = """
platform: "ensemble"
input { name: "question" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "vector" data_type: TYPE_FP32 dims: [ -1, 32 ] }
ensemble_scheduling { step {
  model_name: "emb" model_version: -1
  input_map { key: "text_input" value: "question" }
  output_map { key: "embedding" value: "vector" }
} }
"""

CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "question").as_numpy()
        inputs = [pb_utils.Tensor("text_input", texts)]
        asked = pb_utils.InferenceRequest(model_name="emb", inputs=inputs, requested_output_names=["embedding"])
        vectors = pb_utils.get_output_tensor_by_name(asked.exec(), "embedding").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("vector", vectors)])
"""
CALLER_CONFIG = """
backend: "python"
input { name: "question" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "vector" data_type: TYPE_FP32 dims: [ -1, 32 ] }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(repository):
    """By name, as transformers has them."""
    (repository / "ens" / "1").mkdir(parents=True)
    (repository / "ens" / "config.pbtxt").write_text(ENSEMBLE)
    (repository / "caller" / "1").mkdir(parents=True)
    (repository / "caller" / "config.pbtxt").write_text(CALLER_CONFIG)
    (repository / "caller" / "1" / "model.py").write_text(CALLER)
    made = {}
    for name in ("emb", "rank"):
        made[name] = write_bert(repository / name / "1", scores=name == "rank")
        (repository / name / "config.pbtxt").write_text('backend: "pooling"')
    return made


@pytest.fixture(scope="module")
def server(models, repository):
    process = ServerProcess(repository)
    assert eventually(lambda: process.said("ready:"), 120)
    yield process
    process.stop()


@pytest.fixture(scope="module")
def vectors(models, repository) -> np.ndarray:
    return np.stack([reference_vector(models["emb"], repository / "emb" / "1", text).numpy() for text in TEXTS])


def test_the_openai_client_gets_the_vectors_of_transformers_in_either_form(server, vectors):
    coded = server.openai.embeddings.create(model="emb", input=TEXTS)
    plain = server.openai.embeddings.create(model="emb", input=TEXTS, encoding_format="float")
    for answer in (coded, plain):
        assert [entry.index for entry in answer.data] == list(range(len(TEXTS)))
        np.testing.assert_allclose([entry.embedding for entry in answer.data], vectors, atol=1e-5)
    alone = [server.openai.embeddings.create(model="emb", input=text) for text in TEXTS[:4]]
    np.testing.assert_allclose([answer.data[0].embedding for answer in alone], vectors[:4], atol=1e-5)
    assert coded.usage.prompt_tokens == 5 * sum(answer.usage.prompt_tokens for answer in alone)


async def test_many_clients_at_once_get_their_own_vectors(server, vectors):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=120) as client:

        async def ask(index: int) -> None:
            answer = await client.embeddings.create(model="emb", input=TEXTS[index])
            np.testing.assert_allclose(answer.data[0].embedding, vectors[index], atol=1e-5)

        await asyncio.gather(*(ask(i % len(TEXTS)) for i in range(100)))


def test_errors_are_the_clients_own_exceptions(server):
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai.embeddings.create(model="emb", input=["a", "a" * 100])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[1]")
    assert f"maximum context length is {MAX_LEN} tokens" in str(caught.value)
    for call in (
        lambda: server.openai.embeddings.create(model="rank", input="a"),
        lambda: server.openai.chat.completions.create(model="emb", messages=[{"role": "user", "content": "a"}]),
        lambda: server.openai.completions.create(model="emb", prompt="a"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            call()
        assert caught.value.code == "unsupported_endpoint"


def test_a_cross_encoder_ranks_and_scores_as_transformers_does(server, models, repository):
    wanted = [reference_score(models["rank"], repository / "rank" / "1", "tide", text) for text in TEXTS[:4]]
    body = {"model": "rank", "query": "tide", "documents": TEXTS[:4]}
    results = httpx.post(server.url + "/v1/rerank", json=body, timeout=60).json()["results"]
    assert [result["relevance_score"] for result in results] == sorted(
        [result["relevance_score"] for result in results], reverse=True
    )
    for result in results:
        assert result["relevance_score"] == pytest.approx(wanted[result["index"]], abs=1e-5)
    body = {"model": "rank", "text_1": "tide", "text_2": TEXTS[:4]}
    data = httpx.post(server.url + "/v1/score", json=body, timeout=60).json()["data"]
    assert [entry["score"] for entry in data] == pytest.approx(wanted, abs=1e-5)


def test_tritons_clients_an_ensemble_and_a_custom_model_get_the_same(server, vectors):
    values = np.array([text.encode() for text in TEXTS], object)
    with triton_http.InferenceServerClient(server.address("HTTPService")) as over_http:
        question = triton_http.InferInput("text_input", [len(TEXTS)], "BYTES")
        question.set_data_from_numpy(values)
        answer = over_http.infer("emb", [question])
        np.testing.assert_allclose(answer.as_numpy("embedding"), vectors, atol=1e-5)
        statistics = over_http.get_inference_statistics("emb")["model_stats"][0]
    assert statistics["inference_count"] == len(TEXTS)
    assert statistics["inference_stats"]["success"]["count"] == 1
    with triton_grpc.InferenceServerClient(server.address("GRPCInferenceService")) as over_grpc:
        pipelines = [(name, "question", "vector") for name in ("ens", "caller")]
        for model, name, output in (("emb", "text_input", "embedding"), *pipelines):
            question = triton_grpc.InferInput(name, [len(TEXTS)], "BYTES")
            question.set_data_from_numpy(values)
            np.testing.assert_allclose(over_grpc.infer(model, [question]).as_numpy(output), vectors, atol=1e-5)


def test_the_benchmark_measures_any_endpoint(server, tmp_path):
    report = tmp_path / "report.json"
    load = ["--clients", "1", "4", "--batch", "2", "--words", "4", "--texts", "16", "--runs", "1"]
    assert embed.main(["--url", server.url + "/v1", "--floor", "", "--no-progress", "--json", str(report), *load]) == 0
    points = json.loads(report.read_text())["points"]
    assert [(point["clients"], point["batch"], point["words"]) for point in points] == [(1, 2, 4), (4, 2, 4)]
    assert all(run["texts_per_s"] > 0 and run["cpu_us"] > 0 for point in points for run in point["runs"])


def test_an_engine_that_dies_is_restarted(server, vectors):
    children = psutil.Process(server.pid).children()
    engines = [child for child in children if '"model_name":"emb"' in " ".join(child.cmdline())]
    assert len(engines) == 1
    os.kill(engines[0].pid, signal.SIGKILL)

    def answers() -> bool:
        try:
            found = server.openai.embeddings.create(model="emb", input=TEXTS[0]).data[0].embedding
        except openai.APIStatusError as error:
            assert error.status_code == 503
            return False
        np.testing.assert_allclose(found, vectors[0], atol=1e-5)
        return engines[0].pid not in psutil.pids() or not engines[0].is_running()

    assert eventually(answers, 120)
