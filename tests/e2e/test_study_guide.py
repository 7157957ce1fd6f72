"""The first example of the Triton study guides, word for word, by every client there is: DenseNet-121 as it comes.

The reference output lies beside the model in the package onnx, for an input that counts up from 0 to nearly 1.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpclient_aio

from tests.e2e.server_process import START, ServerProcess, eventually

pytestmark = pytest.mark.slow

CONFIG = """
name: "densenet_onnx"
backend: "onnxruntime"
max_batch_size: 0
input [{ name: "data_0" data_type: TYPE_FP32 dims: [ 1, 3, 224, 224 ] }]
output [{ name: "fc6_1" data_type: TYPE_FP32 dims: [ 1, 1000, 1, 1 ] }]
"""
# as Triton's own documentation has it: the caller knows of no batch, and classes have names
RESHAPED = """
platform: "onnxruntime_onnx"
max_batch_size: 0
input [{ name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] reshape { shape: [ 1, 3, 224, 224 ] } }]
output [{ name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] reshape { shape: [ 1, 1000, 1, 1 ] } label_filename: "names.txt" }]
"""
SHAPE = (1, 3, 224, 224)
IMAGE = (np.arange(np.prod(SHAPE), dtype=np.int64).reshape(SHAPE) / np.prod(SHAPE)).astype(np.float32)
ATTEMPTS = 3


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    onnx = pytest.importorskip("onnx")
    tensor = onnx.TensorProto()
    tensor.ParseFromString(Path(f"{_light()}_output_0.pb").read_bytes())
    array: np.ndarray = onnx.numpy_helper.to_array(tensor)
    return array


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    for name, config in (("densenet_onnx", CONFIG), ("densenet_reshaped", RESHAPED)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(config)
        (root / name / "1" / "model.onnx").symlink_to(f"{_light()}.onnx")
        (root / name / "names.txt").write_text("".join(f"class {number}\n" for number in range(1000)))
    running = ServerProcess(root)
    assert eventually(running.is_ready, START)
    yield running
    running.stop()


def _light() -> str:
    spec = find_spec("onnx")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package onnx, which has the model, is not installed")
    return f"{spec.submodule_search_locations[0]}/backend/test/data/light/light_densenet121"


def over_grpc(server: ServerProcess) -> np.ndarray:
    client = grpcclient.InferenceServerClient(url=server.address("GRPCInferenceService"))
    inputs = [grpcclient.InferInput("data_0", IMAGE.shape, "FP32")]
    inputs[0].set_data_from_numpy(IMAGE)
    outputs = [grpcclient.InferRequestedOutput("fc6_1")]
    results = client.infer(model_name="densenet_onnx", inputs=inputs, outputs=outputs)
    client.close()
    array: np.ndarray = results.as_numpy("fc6_1")
    return array


def over_http(server: ServerProcess, *, binary: bool) -> np.ndarray:
    client = httpclient.InferenceServerClient(url=server.address("HTTPService"))
    inputs = httpclient.InferInput("data_0", IMAGE.shape, datatype="FP32")
    inputs.set_data_from_numpy(IMAGE, binary_data=binary)
    outputs = httpclient.InferRequestedOutput("fc6_1", binary_data=binary)
    results = client.infer(model_name="densenet_onnx", inputs=[inputs], outputs=[outputs])
    client.close()
    array: np.ndarray = results.as_numpy("fc6_1")
    return array


def over_grpc_aio(server: ServerProcess) -> np.ndarray:
    async def ask() -> Any:
        async with grpcclient_aio.InferenceServerClient(server.address("GRPCInferenceService")) as client:
            given = grpcclient_aio.InferInput("data_0", list(SHAPE), "FP32")
            given.set_data_from_numpy(IMAGE)
            return await client.infer("densenet_onnx", [given])

    array: np.ndarray = asyncio.run(ask()).as_numpy("fc6_1")
    return array


def over_http_aio(server: ServerProcess) -> np.ndarray:
    async def ask() -> Any:
        async with httpclient_aio.InferenceServerClient(server.address("HTTPService")) as client:
            given = httpclient_aio.InferInput("data_0", list(SHAPE), "FP32")
            given.set_data_from_numpy(IMAGE)
            return await client.infer("densenet_onnx", [given])

    array: np.ndarray = asyncio.run(ask()).as_numpy("fc6_1")
    return array


def over_curl(server: ServerProcess) -> np.ndarray:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    given = {"name": "data_0", "shape": SHAPE, "datatype": "FP32", "data": IMAGE.ravel().tolist()}
    answer = subprocess.run(
        ["curl", "-sS", f"{server.url}/v2/models/densenet_onnx/infer", "-d", "@-"],
        input=json.dumps({"inputs": [given]}),
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    (output,) = json.loads(answer)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


CLIENTS: dict[str, Callable[[ServerProcess], np.ndarray]] = {
    "gRPC": over_grpc,
    "HTTP, binary": lambda server: over_http(server, binary=True),
    "HTTP, JSON": lambda server: over_http(server, binary=False),
    "gRPC, aio": over_grpc_aio,
    "HTTP, aio": over_http_aio,
    "curl": over_curl,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_gets_the_reference(server: ServerProcess, reference: np.ndarray, client: str) -> None:
    output = CLIENTS[client](server)
    assert output.shape == reference.shape
    np.testing.assert_allclose(output, reference, atol=1e-3, rtol=0)


def test_classes_come_with_their_names_best_first(server: ServerProcess, reference: np.ndarray) -> None:
    client = httpclient.InferenceServerClient(url=server.address("HTTPService"))
    inputs = httpclient.InferInput("data_0", IMAGE.shape[1:], datatype="FP32")
    inputs.set_data_from_numpy(IMAGE[0], binary_data=True)
    outputs = httpclient.InferRequestedOutput("fc6_1", binary_data=True, class_count=1000)
    results = client.infer(model_name="densenet_reshaped", inputs=[inputs], outputs=[outputs])
    client.close()
    classes = results.as_numpy("fc6_1").astype(str)
    assert classes.shape == (1000,)
    value, index, name = classes[0].split(":")
    best = int(reference.argmax())
    assert (int(index), name) == (best, f"class {best}")
    assert float(value) == pytest.approx(reference.max(), abs=1e-3)


def test_statistics_tell_what_a_load_tool_reads_from_them(server: ServerProcess) -> None:
    """perf_analyzer takes the difference of two readings and splits a request's time into its parts."""
    client = grpcclient.InferenceServerClient(url=server.address("GRPCInferenceService"))
    given = grpcclient.InferInput("data_0", list(SHAPE), "FP32")
    given.set_data_from_numpy(IMAGE)

    def reading() -> Any:
        (entry,) = client.get_inference_statistics("densenet_onnx").model_stats
        return entry

    before = reading()
    for _ in range(ATTEMPTS):
        client.infer("densenet_onnx", [given])
    after = reading()
    client.close()
    assert (after.name, after.version) == ("densenet_onnx", "1")
    assert after.inference_count - before.inference_count == ATTEMPTS
    assert after.execution_count - before.execution_count == ATTEMPTS

    def spent(part: str) -> int:
        old, new = getattr(before.inference_stats, part), getattr(after.inference_stats, part)
        assert new.count - old.count == ATTEMPTS
        return int(new.ns - old.ns)

    parts = [spent(part) for part in ("queue", "compute_input", "compute_infer", "compute_output")]
    assert all(part >= 0 for part in parts)
    assert 0 < spent("compute_infer") <= sum(parts) <= spent("success")
    assert after.last_inference > before.last_inference
    (batch,) = after.batch_stats
    assert (batch.batch_size, batch.compute_infer.count) == (1, after.execution_count)
