"""Requests per second through `TensorModel` alone, beside bare ONNX Runtime in the same process.

    python -m bench.in_process [--seconds 2] [--callers 1 16 64] [--rounds 3]

Callers are coroutines on one uvloop that each wait for their answer before they ask again. `bare` calls the session in
a loop from one thread. Prints the median of the rounds and their spread.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import uvloop
from onnx import TensorProto, helper, numpy_helper

from backends.api.model_config import DynamicBatching, InstanceGroup, ModelConfig
from backends.api.request import InferenceRequest
from backends.api.tensor import Tensor
from scheduler.alarm import Alarm
from scheduler.load import load_tensor_model


def identity_model() -> onnx.ModelProto:
    """y = x, FP32 [N, 16]."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return _model(nodes, ["N", 16], ["N", 16], [])


def cnn_model(channels: int = 16, size: int = 32) -> onnx.ModelProto:
    """Four 3x3 convolutions with ReLU, a global mean and ten logits: FP32 [N, 3, size, size] to [N, 10]."""
    random = np.random.default_rng(0)
    nodes, weights, name, width = [], [], "x", 3
    for layer in range(4):
        weights.append(_weight(f"w{layer}", random, (channels, width, 3, 3)))
        nodes.append(helper.make_node("Conv", [name, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        name, width = f"r{layer}", channels
    nodes.append(helper.make_node("GlobalAveragePool", [name], ["pool"]))
    nodes.append(helper.make_node("Flatten", ["pool"], ["flat"]))
    weights.append(_weight("dense", random, (channels, 10)))
    nodes.append(helper.make_node("MatMul", ["flat", "dense"], ["y"]))
    return _model(nodes, ["N", 3, size, size], ["N", 10], weights)


def _weight(name: str, random: np.random.Generator, shape: tuple[int, ...]) -> onnx.TensorProto:
    return numpy_helper.from_array((random.standard_normal(shape) * 0.1).astype(np.float32), name)


def _model(
    nodes: list[onnx.NodeProto],
    given: list[int | str],
    taken: list[int | str],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, taken)]
    graph = helper.make_graph(nodes, "bench", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@contextmanager
def version_folder(model: onnx.ModelProto) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "1"
        folder.mkdir()
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        yield folder


async def served_rate(config: ModelConfig, folder: Path, array: np.ndarray, callers: int, seconds: float) -> float:
    """Answers a second with `callers` callers."""
    model = await load_tensor_model(config, "1", folder, alarm=Alarm())
    end = time.perf_counter() + seconds

    async def call() -> int:
        count = 0
        while time.perf_counter() < end:
            request = InferenceRequest(config.name, "", [Tensor("x", "FP32", array.shape, array)])
            model.infer(request)
            await request.stream.take()
            count += 1
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*(call() for _ in range(callers)))
    rate = sum(counts) / (time.perf_counter() - start)
    await model.close()
    return rate


def run_served(config: ModelConfig, folder: Path, array: np.ndarray, callers: int, seconds: float) -> float:
    return uvloop.run(served_rate(config, folder, array, callers, seconds))


def bare_rate(folder: Path, array: np.ndarray, threads: int, seconds: float) -> float:
    """Runs a second of the session alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        session.run(["y"], {"x": array})
        count += 1
    return count / (time.perf_counter() - start)


def report(name: str, measure: Callable[[], float], rounds: int) -> None:
    rates = [measure() for _ in range(rounds)]
    spread = (max(rates) - min(rates)) / statistics.median(rates)
    median = statistics.median(rates)
    print(f"{name:42} {median:10.0f} /s {1e6 / median:8.1f} µs   spread {spread:.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--threads", type=int, default=1, help="intra_op_thread_count")
    parser.add_argument("--instances", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    models = {"identity": (identity_model(), (1, 16)), "cnn": (cnn_model(), (1, 3, 32, 32))}
    for name, (model, shape) in models.items():
        array = np.random.default_rng(1).random(shape).astype(np.float32)
        with version_folder(model) as folder:
            report(
                f"{name} bare",
                partial(bare_rate, folder, array, arguments.threads, arguments.seconds),
                arguments.rounds,
            )
            for instances in arguments.instances:
                for label, batching in (
                    ("direct", None),
                    ("dynamic", DynamicBatching()),
                    ("dynamic 5 ms", DynamicBatching(max_queue_delay_microseconds=5000)),
                ):
                    config = ModelConfig(
                        name,
                        backend="onnxruntime",
                        max_batch_size=16,
                        dynamic_batching=batching,
                        instance_groups=(InstanceGroup(kind="KIND_CPU", count=instances),),
                        parameters={"intra_op_thread_count": str(arguments.threads)},
                    )
                    for callers in arguments.callers:
                        report(
                            f"{name} {label}, {instances} instance(s), {callers} callers",
                            partial(run_served, config, folder, array, callers, arguments.seconds),
                            arguments.rounds,
                        )


if __name__ == "__main__":
    main()
