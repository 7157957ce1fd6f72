"""The CPU kernels by themselves: matrix products, attention and whole decoder steps of a SmolLM2-135M shape.

    python -m bench.kernels [--threads 2] [--json FILE]

Times are milliseconds, best and median over the repetitions; the median is what a neighbour's noise leaves of it.
Weights of all layers are walked in turn, so that they come from memory as in a real step.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from backends.lm.attention.numba_paged import NumbaPagedAttention
from backends.lm.cpu import cpu_ops
from backends.lm.ops import AttentionBatch, AttentionSpec, DecoderLayer
from backends.lm.weights import Weight

HIDDEN, FFN, LAYERS, VOCAB = 576, 1536, 30, 49152
SPEC = AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
BLOCK = 16
Q_SIZE, KV_SIZE = 9 * 64, 3 * 64


@dataclass(frozen=True)
class Result:
    what: str
    variant: str
    best_ms: float
    median_ms: float
    note: str = ""

    def __str__(self) -> str:
        return f"{self.what:28} {self.variant:22} {self.best_ms:9.2f} {self.median_ms:9.2f}   {self.note}"


def measure(what: str, variant: str, run: Callable[[], object], note: Callable[[float], str], budget: float) -> Result:
    run()
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 100):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    best, median = min(times), float(np.median(times))
    return Result(what, variant, 1e3 * best, 1e3 * median, note(median))


def random_weight(format_name: str, out: int, features: int, rng: np.random.Generator) -> Weight:
    if format_name == "F32":
        return Weight.from_tensor(torch.from_numpy(rng.normal(0, 0.05, (out, features)).astype(np.float32)))
    size = {"Q4_1": 20, "Q8_0": 34}[format_name]
    blocks = rng.integers(0, 256, (out, features // 32, size), dtype=np.uint8)
    scales = 2 if format_name == "Q4_1" else 1
    blocks[..., : 2 * scales] = rng.normal(0, 0.005, (out, features // 32, scales)).astype(np.float16).view(np.uint8)
    return Weight(format_name, (out, features), blocks.reshape(out, -1))


def shapes() -> list[list[int]]:
    """[outputs of the matrices that share an input..., input features] of one layer."""
    return [[Q_SIZE, KV_SIZE, KV_SIZE, HIDDEN], [HIDDEN, HIDDEN], [FFN, FFN, HIDDEN], [HIDDEN, FFN]]


def products(threads: int, rows: list[int]) -> Iterator[Result]:
    rng = np.random.default_rng(0)
    variants = [
        ("W4A8", "Q4_1", "Q8_0", "bfloat16"),
        ("bf16", "F32", "F32", "bfloat16"),
        ("f32", "F32", "F32", "float32"),
    ]
    for name, layer_format, head_format, dtype in variants:
        ops = cpu_ops(dtype, threads)
        layers = [
            ops.linear([random_weight(layer_format, out, s[-1], rng) for out in s[:-1]], [None] * (len(s) - 1))
            for _ in range(LAYERS)
            for s in shapes()
        ]
        head = ops.linear([random_weight(head_format, VOCAB, HIDDEN, rng)], [None])
        for count in rows:
            inputs = {n: torch.randn(count, n) for n in (HIDDEN, FFN)}

            def run(inputs: dict[int, torch.Tensor] = inputs) -> None:
                for linear in (*layers, head):
                    linear(inputs[linear.in_features][: 32 if linear is head else None])

            yield measure(f"all products, {count} rows", name, run, rate(count), 1.5)
        ops.close()
    matrices = [torch.randn(sum(s[:-1]), s[-1], dtype=torch.bfloat16) for _ in range(LAYERS) for s in shapes()]
    matrices.append(torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16))
    for count in rows:
        inputs = {n: torch.randn(count, n, dtype=torch.bfloat16) for n in (HIDDEN, FFN)}

        def run(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for matrix in matrices:
                functional.linear(inputs[matrix.shape[1]][: 32 if len(matrix) == VOCAB else None], matrix)

        yield measure(f"all products, {count} rows", "F.linear bf16", run, rate(count), 1.5)


def rate(tokens: int) -> Callable[[float], str]:
    return lambda seconds: f"{tokens / seconds:8.0f} tokens/s"


def batch_of(lengths: list[int], counts: list[int]) -> tuple[AttentionBatch, int]:
    """Sequences of `lengths`, of which each brings its last `counts` tokens; their blocks lie scattered."""
    blocks = [-(-n // BLOCK) for n in lengths]
    places = np.random.default_rng(0).permutation(sum(blocks)).astype(np.int32)
    table = np.zeros((len(lengths), max(blocks)), dtype=np.int32)
    for s, count in enumerate(blocks):
        table[s, :count], places = places[:count], places[count:]
    positions = np.concatenate([np.arange(n - c, n) for n, c in zip(lengths, counts, strict=True)]).astype(np.int32)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    slots = table[sequence, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    arrays = (starts, np.array(lengths, np.int32), table, positions, slots)
    return AttentionBatch(*arrays, max_query=max(counts), max_context=max(lengths)), sum(blocks)


WORKLOADS = {
    "decode 1 at 128": ([128], [1]),
    "decode 1 at 512": ([512], [1]),
    "decode 1 at 2048": ([2048], [1]),
    "decode 1 at 8000": ([8000], [1]),
    "decode 4 at 192": ([192] * 4, [1] * 4),
    "decode 16 at 192": ([192] * 16, [1] * 16),
    "decode 32 at 192": ([192] * 32, [1] * 32),
    "decode 32 at 512": ([512] * 32, [1] * 32),
    "prefill 128": ([128], [128]),
    "prefill 512": ([512], [512]),
    "chunk 64 at 2048": ([2048], [64]),
    "chunk 64 at 8000": ([8000], [64]),
}


def fill(layers: list[NumbaPagedAttention], num_blocks: int) -> None:
    """Write to every block of the pools: memory that was never written is one page of zeros, which is quick to read."""
    tokens = num_blocks * BLOCK
    everything, _ = batch_of([BLOCK] * num_blocks, [BLOCK] * num_blocks)
    q, k, v = torch.randn(tokens, 9, 64), torch.randn(tokens, 3, 64), torch.randn(tokens, 3, 64)
    for layer in layers:
        layer(q, k, v, everything)


def attention(threads: int) -> Iterator[Result]:
    """All layers' attention, each over its own pool."""
    for dtype in ("bfloat16", "float32"):
        ops = cpu_ops(dtype, threads)
        for name, (lengths, counts) in WORKLOADS.items():
            batch, num_blocks = batch_of(lengths, counts)
            layers = [ops.attention(SPEC, num_blocks, BLOCK) for _ in range(LAYERS)]
            fill(layers, num_blocks)
            tokens = sum(counts)
            q, k, v = torch.randn(tokens, 9, 64), torch.randn(tokens, 3, 64), torch.randn(tokens, 3, 64)
            pairs = sum(c * n - c * (c - 1) // 2 for n, c in zip(lengths, counts, strict=True))
            flops, size = (
                LAYERS * 4 * 9 * 64 * pairs,
                LAYERS * 2 * 3 * 64 * sum(lengths) * (2 if dtype == "bfloat16" else 4),
            )

            def run(layers: list = layers, given: tuple = (q, k, v, batch)) -> None:
                for layer in layers:
                    layer(*given)

            def note(seconds: float, flops: int = flops, size: int = size) -> str:
                return f"{flops / seconds / 1e9:6.0f} GFLOP/s {size / seconds / 1e9:6.1f} GB/s of keys and values"

            yield measure(f"attention, {name}", dtype, run, note, 0.5)
        ops.close()


def steps(threads: int) -> Iterator[Result]:
    """A decoder of random weights without the LM head, run as one tape."""
    rng = np.random.default_rng(0)
    angles = torch.randn(2048, 32)
    norm = torch.ones(HIDDEN)
    for variant, format_name, dtype in (("W4A8", "Q4_1", "bfloat16"), ("bf16", "F32", "bfloat16")):
        ops = cpu_ops(dtype, threads)
        num_blocks = max(batch_of(*load)[1] for load in WORKLOADS.values())
        layers = []
        for _ in range(LAYERS):
            qkv, o, gate_up, down = (
                ops.linear([random_weight(format_name, out, s[-1], rng) for out in s[:-1]], [None] * (len(s) - 1))
                for s in shapes()
            )
            pool = ops.attention(SPEC, num_blocks, BLOCK)
            layers.append(DecoderLayer(norm, qkv, angles.cos(), angles.sin(), pool, o, norm, gate_up, "silu", down))
        decoder = ops.fuse(layers, norm, 1e-5)
        for name, (lengths, counts) in WORKLOADS.items():
            batch, _ = batch_of(lengths, counts)
            hidden = torch.randn(sum(counts), HIDDEN)

            def run(hidden: torch.Tensor = hidden, batch: AttentionBatch = batch) -> None:
                decoder(hidden.clone(), batch)

            yield measure(f"layers, {name}", variant, run, rate(sum(counts)), 0.5)
        ops.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 128, 512])
    parser.add_argument("--only", choices=["products", "attention", "steps"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    parts = {
        "products": lambda: products(options.threads, options.rows),
        "attention": lambda: attention(options.threads),
        "steps": lambda: steps(options.threads),
    }
    results = []
    print(f"{'':28} {'':22} {'best ms':>9} {'median':>9}")
    for name, part in parts.items():
        for result in part() if options.only in (None, name) else ():
            print(result, flush=True)
            results.append(asdict(result))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
