"""Every format's values are those of the gguf package, and bytes may move by whole rows."""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch

from backends.api.errors import Code, ServingError
from backends.lm.dequantize import FORMATS, dequantize_rows
from backends.lm.weights import Weight, raw_weight

RandomRows = Callable[..., np.ndarray]


@pytest.mark.parametrize("format_name", FORMATS)
def test_values_of_a_format_are_those_of_the_gguf_package(format_name: str, random_rows: RandomRows) -> None:
    raw = random_rows(format_name, rows=24, values=512)
    kind = gguf.GGMLQuantizationType[format_name]
    stored = raw.view({"F32": "<f4", "F16": "<f2"}.get(format_name, np.uint8))
    expected = gguf.quants.dequantize(stored, kind).astype(np.float32)
    np.testing.assert_allclose(dequantize_rows(format_name, raw), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_weight_has_its_shape_in_any_dtype(format_name: str, dtype: torch.dtype, random_rows: RandomRows) -> None:
    raw = random_rows(format_name, rows=8, values=256)
    weight = Weight(format_name, (8, 256), raw)
    values = weight.dequantize(dtype)
    assert values.shape == (8, 256)
    assert values.dtype == dtype
    expected = torch.from_numpy(dequantize_rows(format_name, raw)).to(dtype)
    torch.testing.assert_close(values, expected, rtol=0, atol=0)


def test_a_large_weight_converts_in_pieces_to_the_same_values(random_rows: RandomRows) -> None:
    raw = random_rows("Q4_1", rows=5000, values=512)
    values = Weight("Q4_1", (5000, 512), raw).dequantize(torch.float32)
    np.testing.assert_array_equal(values.numpy(), dequantize_rows("Q4_1", raw))


@pytest.mark.parametrize("format_name", FORMATS)
def test_taking_rows_of_bytes_takes_rows_of_values(format_name: str, random_rows: RandomRows) -> None:
    weight = Weight(format_name, (16, 256), random_rows(format_name, rows=16, values=256))
    order = np.random.default_rng(1).permutation(16)
    moved = weight.take_rows(order).dequantize(torch.float32)
    torch.testing.assert_close(moved, weight.dequantize(torch.float32)[order], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_becomes_a_weight_of_the_same_values(dtype: torch.dtype) -> None:
    for tensor in (torch.randn(6, 10).to(dtype), torch.randn(7).to(dtype)):
        weight = Weight.from_tensor(tensor)
        assert weight.shape == tuple(tensor.shape)
        assert torch.equal(weight.dequantize(dtype), tensor)


def test_an_unknown_format_is_named_with_the_file_and_the_tensor(tmp_path) -> None:
    with pytest.raises(
        ServingError, match=r"m\.gguf: tensor 'blk\.0': expected one of F32.*got format IQ2_XS"
    ) as caught:
        raw_weight(tmp_path / "m.gguf", "blk.0", "IQ2_XS", (2, 256), np.zeros(8, np.uint8))
    assert caught.value.code is Code.UNSUPPORTED


def test_too_few_bytes_are_a_clear_error(tmp_path) -> None:
    with pytest.raises(ServingError, match="tensor 'w': expected 32 bytes, got 8: the file is cut off"):
        raw_weight(tmp_path / "m.gguf", "w", "F32", (2, 4), np.zeros(8, np.uint8))
