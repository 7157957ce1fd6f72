"""A small CNN behind the server, beside bare ONNX Runtime in this process: how much of the model's rate arrives.

    python -m bench.peers.cnn [--protocols grpc http-binary] [--clients 16]

Both use one thread for a run of the model, and take turns.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import uvloop

from bench.in_process import bare_rate, cnn_model
from bench.infer import measure_once
from bench.infer_requests import PROTOCOLS, Target
from bench.peers.servers import PeerUnavailableError, tidegate

_CHANNELS, _SIZE = 32, 96  # about 5 ms an image on one core of 2024
_CONFIG = """
backend: "onnxruntime"
max_batch_size: 16
instance_group {{ kind: KIND_CPU count: 1 }}
parameters {{ key: "intra_op_thread_count" value: {{ string_value: "1" }} }}
{batching}
"""
_MODELS = {"cnn": "", "cnn_batched": "dynamic_batching { }"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.cnn", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=["grpc", "http-binary"])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(argv)
    try:
        with ExitStack() as stack:
            run(options, stack)
    except (OSError, PeerUnavailableError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace, stack: ExitStack) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    models = _write_models(folder / "models")
    http, grpc = stack.enter_context(tidegate(folder, Path(__file__).parents[2], models=models))
    image = np.random.default_rng(1).random((1, 3, _SIZE, _SIZE)).astype(np.float32)
    print(f"{'model':12} {'protocol':12} {'img/s':>7} {'bare':>7} {'share':>6}  of each turn")
    for model in _MODELS:
        for protocol in options.protocols:
            served, bare = [], []
            for _ in range(options.runs):
                bare.append(bare_rate(models / model / "1", image, 1, options.seconds))
                target = Target(model, model, http, grpc)
                numbers = uvloop.run(measure_once(target, protocol, options.clients, options.seconds))
                served.append(numbers["requests_per_s"])
            shares = [got / most for got, most in zip(served, bare, strict=True)]
            turns = " ".join(f"{share:.2f}" for share in shares)
            rates = f"{statistics.median(served):7.1f} {statistics.median(bare):7.1f}"
            print(f"{model:12} {protocol:12} {rates} {statistics.median(shares):6.2f}  {turns}", flush=True)


def _write_models(folder: Path) -> Path:
    content = cnn_model(_CHANNELS, _SIZE).SerializeToString()
    for name, batching in _MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(content)
        (folder / name / "config.pbtxt").write_text(_CONFIG.format(batching=batching))
    return folder


if __name__ == "__main__":
    sys.exit(main())
