"""Packed linear layers: the values of every format, rows that do not depend on their neighbours."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.lm.cpu import cpu_ops
from backends.lm.cpu.features import cpu_features
from backends.lm.cpu.packing import format_for
from backends.lm.cpu.x86_ops import CpuOps
from backends.lm.weights import Weight

pytestmark = pytest.mark.skipif(not cpu_features().vnni, reason="kernels for AVX-512 with VNNI")

# what rounding activations (and weights) to the kernel's type may cost, relative to the result's norm
TOLERANCE = {"float32": 1e-6, "bfloat16": 8e-3}
ROWS = 37


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def ops(request: pytest.FixtureRequest) -> Iterator[CpuOps]:
    made = cpu_ops(request.param, 2)
    yield made
    made.close()


def weight(random_rows: Callable, format_name: str, out: int, features: int, seed: int = 0) -> Weight:
    return Weight(format_name, (out, features), random_rows(format_name, out, features, seed))


def expected(x: torch.Tensor, weights: list[Weight], biases: list[torch.Tensor | None]) -> torch.Tensor:
    parts = []
    for w, bias in zip(weights, biases, strict=True):
        y = x.double() @ w.dequantize(torch.float32).double().T
        parts.append(y if bias is None else y + bias.double())
    return torch.cat(parts, dim=1)


def relative_error(y: torch.Tensor, reference: torch.Tensor) -> float:
    return float((y.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("format_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_every_format_gives_the_product_of_its_values(ops: CpuOps, random_rows: Callable, format_name: str) -> None:
    torch.manual_seed(0)
    weights = [weight(random_rows, format_name, 48, 512), weight(random_rows, format_name, 23, 512, seed=1)]
    biases = [None, torch.randn(23)]
    x = torch.randn(ROWS, 512)
    y = ops.linear(weights, biases)(x)
    assert y.shape == (ROWS, 71)
    assert (
        relative_error(y, expected(x, weights, biases))
        < TOLERANCE["float32" if ops.kv_dtype == torch.float32 else "bfloat16"]
    )


@pytest.mark.parametrize("features", [32, 48, 40, 7])
def test_input_features_need_not_fill_groups(ops: CpuOps, random_rows: Callable, features: int) -> None:
    w = weight(random_rows, "F32", 17, features)
    x = torch.randn(5, features)
    assert relative_error(ops.linear([w], [None])(x), expected(x, [w], [None])) < 8e-3


@pytest.mark.parametrize("format_name", ["F32", "Q4_1", "Q8_0"])
def test_a_row_is_the_same_bit_for_bit_in_every_batch(ops: CpuOps, random_rows: Callable, format_name: str) -> None:
    linear = ops.linear([weight(random_rows, format_name, 200, 96)], [torch.randn(200)])
    x = torch.randn(ROWS, 96)
    together = linear(x).clone()
    for start in range(ROWS):
        for end in range(start + 1, min(ROWS, start + 18) + 1):
            assert torch.equal(linear(x[start:end]), together[start:end])


def test_rows_may_lie_apart_in_memory(ops: CpuOps, random_rows: Callable) -> None:
    linear = ops.linear([weight(random_rows, "Q4_1", 64, 64)], [None])
    wide = torch.randn(9, 100)
    assert torch.equal(linear(wide[:, :64]).clone(), linear(wide[:, :64].contiguous()))


def test_zero_rows_and_huge_values_stay_what_they_are(ops: CpuOps, random_rows: Callable) -> None:
    w = weight(random_rows, "Q4_1", 16, 32)
    x = torch.zeros(3, 32)
    x[1] = 1e30
    y = ops.linear([w], [None])(x)
    assert torch.equal(y[0], torch.zeros(16))
    assert torch.equal(y[2], torch.zeros(16))
    assert relative_error(y[1:2], expected(x[1:2], [w], [None])) < 8e-3


@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_any_shape_gives_the_product_in_float32(rows: int, out: int, features: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = torch.from_numpy(rng.normal(size=(out, features)).astype(np.float32))
    x = torch.from_numpy(rng.normal(size=(rows, features)).astype(np.float32))
    ops = cpu_ops("float32", 1)
    y = ops.linear([Weight.from_tensor(matrix)], [None])(x)
    torch.testing.assert_close(y.double(), x.double() @ matrix.double().T, rtol=1e-4, atol=1e-4)


def test_the_kernel_follows_from_format_dtype_and_processor(random_rows: Callable) -> None:
    def choose(*formats: str, dtype: str = "bfloat16", vnni: bool = True, quantized: bool = True) -> str:
        return format_for([weight(random_rows, f, 16, 256) for f in formats], dtype, vnni, quantized)

    assert [choose(f) for f in ("Q4_1", "Q4_0", "Q4_K", "Q8_0")] == ["q4", "q4", "q4", "q8"]
    assert [choose(f) for f in ("F32", "F16", "BF16", "Q6_K")] == ["bf16"] * 4
    assert choose("Q4_1", "Q8_0") == "bf16"
    assert choose("Q4_1", vnni=False) == "bf16"
    assert choose("Q4_1", quantized=False) == "bf16"
    assert choose("Q4_1", dtype="float32") == "f32"
