"""A weight as its file holds it, and what a file of weights offers."""

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from backends.api.errors import Code, ServingError
from backends.lm.dequantize import FORMATS, dequantize_rows

_CHUNK_VALUES = 1 << 20  # values made float32 at a time, so that converting needs little memory beside the result
_TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """One tensor in its file's format. `data` is (rows, bytes a row) uint8, usually mapped from the file.

    `shape` is (out, in) for a matrix, whose rows are the outputs; a vector of n values is one row.
    """

    format: str
    shape: tuple[int, ...]
    data: np.ndarray

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> "Weight":
        """Over a CPU tensor of float32, float16 or bfloat16, sharing its memory if it is contiguous."""
        name = next(name for name, dtype in _TORCH_DTYPES.items() if dtype == tensor.dtype)
        rows = tensor.shape[0] if tensor.dim() > 1 else 1
        data = tensor.detach().contiguous().reshape(rows, -1).view(torch.uint8).numpy()
        return cls(name, tuple(tensor.shape), data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The values in `dtype`, of `shape`. Shares memory with the file where that has the same dtype."""
        stored = _TORCH_DTYPES.get(self.format)
        if stored is not None:
            return torch.from_numpy(self.data).view(stored).view(self.shape).to(dtype)
        out = torch.empty(self.shape, dtype=dtype)
        flat = out.view(len(self.data), -1)
        step = max(1, _CHUNK_VALUES // flat.shape[1])
        for start in range(0, len(flat), step):
            part = self.data[start : start + step]
            flat[start : start + step] = torch.from_numpy(dequantize_rows(self.format, part))
        return out

    def take_rows(self, order: np.ndarray) -> "Weight":
        """The same matrix with its rows in another order: a row is whole blocks, so bytes move unchanged."""
        return Weight(self.format, self.shape, self.data[order])


class WeightFile(Protocol):
    """The tensors of a model, by the names its file gives them."""

    path: Path

    def names(self) -> Collection[str]: ...

    def weight(self, name: str) -> Weight:
        """Raises ServingError: INVALID for a name that is not there, UNSUPPORTED for a format we do not read."""
        ...


def raw_weight(path: Path, name: str, format_name: str, shape: tuple[int, ...], data: np.ndarray) -> Weight:
    """A checked `Weight` over `data`, flat uint8, of tensor `name` in `path`."""
    layout = FORMATS.get(format_name)
    if layout is None:
        known = ", ".join(FORMATS)
        raise weight_error(path, name, f"one of {known}", f"format {format_name}", Code.UNSUPPORTED)
    if shape and shape[-1] % layout.block:
        raise weight_error(path, name, f"rows of whole {format_name} blocks of {layout.block} values", f"{shape[-1]}")
    expected = layout.row_bytes(prod(shape))
    if data.nbytes != expected:
        raise weight_error(path, name, f"{expected} bytes", f"{data.nbytes}: the file is cut off or damaged")
    rows = shape[0] if len(shape) > 1 else 1
    return Weight(format_name, shape, data.reshape(rows, -1))


def weight_error(path: Path, name: str, expected: str, got: str, code: Code = Code.INVALID) -> ServingError:
    return ServingError(code, f"{path}: tensor '{name}': expected {expected}, got {got}")
