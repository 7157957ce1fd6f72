"""Norms, rotary embedding, gates and embedding rows: the same values as plain torch, and each row for itself."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from backends.api.errors import Code, ServingError
from backends.lm.cpu import cpu_ops
from backends.lm.cpu.features import cpu_features
from backends.lm.cpu.x86_ops import CpuOps
from backends.lm.torch_ops import TorchOps
from backends.lm.weights import Weight

pytestmark = pytest.mark.skipif(not cpu_features().avx512, reason="kernels for AVX-512")

PLAIN = TorchOps(torch.float32, torch.device("cpu"))
EPS = 1e-5


@pytest.fixture(scope="module")
def ops() -> Iterator[CpuOps]:
    made = cpu_ops("float32", 2)
    yield made
    made.close()


@pytest.mark.parametrize("features", [5, 48, 576])
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_norms_are_those_of_torch(ops: CpuOps, rows: int, features: int) -> None:
    x, residual, weight = torch.randn(rows, features), torch.randn(rows, features), torch.randn(features)
    torch.testing.assert_close(ops.rms_norm(x, weight, EPS), PLAIN.rms_norm(x, weight, EPS))
    wanted, total = PLAIN.add_rms_norm(x, residual.clone(), weight, EPS)
    normed, summed = ops.add_rms_norm(x, residual, weight, EPS)
    torch.testing.assert_close(normed, wanted)
    assert torch.equal(summed, total)


def test_heads_inside_wider_rows_are_normed_each_for_itself(ops: CpuOps) -> None:
    qkv, weight = torch.randn(11, 100), torch.randn(12)
    heads = qkv[:, 8:80].unflatten(1, (6, 12))
    torch.testing.assert_close(ops.rms_norm(heads, weight, EPS), PLAIN.rms_norm(heads, weight, EPS))


def test_a_normed_row_does_not_depend_on_its_neighbours(ops: CpuOps) -> None:
    x, weight = torch.randn(30, 77), torch.randn(77)
    together = ops.rms_norm(x, weight, EPS)
    assert all(torch.equal(ops.rms_norm(x[i : i + 1], weight, EPS)[0], together[i]) for i in range(30))


@pytest.mark.parametrize("dim", [8, 18, 64])
def test_rotary_is_that_of_torch_and_in_place(ops: CpuOps, dim: int) -> None:
    qkv = torch.randn(19, 5 * dim + 3)
    angles = torch.randn(50, dim // 2)
    cos, sin = angles.cos(), angles.sin()
    positions = np.random.default_rng(0).integers(0, 50, 19).astype(np.int32)
    copy = qkv.clone()
    for part, rotate in ((qkv, ops.rotary), (copy, PLAIN.rotary)):
        q, k = part[:, : 3 * dim].unflatten(1, (3, dim)), part[:, 3 * dim : 5 * dim].unflatten(1, (2, dim))
        rotate(q, k, cos, sin, positions)
    torch.testing.assert_close(qkv, copy)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("features", [1, 31, 80, 1536])
def test_gates_are_those_of_torch(ops: CpuOps, activation: str, features: int) -> None:
    gate_up = 4 * torch.randn(9, 2 * features)
    torch.testing.assert_close(ops.gated(gate_up, activation), PLAIN.gated(gate_up, activation), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_gates_hold_over_the_whole_range_of_floats(ops: CpuOps, activation: str) -> None:
    gate = torch.tensor([[0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 88.0, -88.0, 100.0, -100.0, 1e10, -1e10]])
    gate_up = torch.cat([gate, torch.ones_like(gate)], dim=1)
    torch.testing.assert_close(ops.gated(gate_up, activation), PLAIN.gated(gate_up, activation), rtol=1e-5, atol=1e-5)


def test_embedding_rows_are_the_values_of_their_format(ops: CpuOps, random_rows: Callable) -> None:
    weight = Weight("Q8_0", (50, 64), random_rows("Q8_0", 50, 64))
    tokens = np.array([3, 49, 3, 0], dtype=np.int32)
    rows = ops.embedding(weight, scale=2.0)(tokens)
    assert torch.equal(rows, weight.dequantize(torch.float32)[tokens.tolist()] * 2)
    assert not np.shares_memory(rows.numpy(), weight.data)


def test_a_dtype_without_kernels_is_refused_with_its_name() -> None:
    with pytest.raises(ServingError, match="float16") as refusal:
        cpu_ops("float16", 1)
    assert refusal.value.code is Code.UNSUPPORTED
