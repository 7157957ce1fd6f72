"""The classification extension: an output's largest values as text, `value:index[:label]`."""

from collections.abc import Sequence

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.tensor import Tensor


def classify(tensor: Tensor, count: int, labels: Sequence[str], *, batched: bool) -> Tensor:
    """A BYTES tensor of shape `[batch,] min(count, classes)`, largest value first, ties by lower index.

    Raises ServingError(INVALID) for a datatype whose values have no order.
    """
    if tensor.datatype in ("BYTES", "BF16", "BOOL") or not isinstance(tensor.data, np.ndarray):
        raise ServingError(
            Code.INVALID, f"class result not available for output due to unsupported type '{tensor.datatype}'"
        )
    batch = tensor.shape[0] if batched and tensor.shape else 1
    rows = tensor.data.reshape(batch, -1)
    count = min(count, rows.shape[1])
    elements = [_class_text(row, int(index), labels) for row in rows for index in _largest(row)[:count]]
    shape = (batch, count) if batched else (count,)
    return Tensor(tensor.name, "BYTES", shape, elements)


def _largest(row: np.ndarray) -> np.ndarray:
    """Indices by falling value. A stable sort of the reversed row keeps equal values in index order."""
    order: np.ndarray = row.shape[0] - 1 - np.argsort(row[::-1], kind="stable")
    return order[::-1]


def _class_text(row: np.ndarray, index: int, labels: Sequence[str]) -> bytes:
    value = f"{row[index]:f}" if row.dtype.kind == "f" else str(row[index])
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{value}:{index}{label}".encode()
