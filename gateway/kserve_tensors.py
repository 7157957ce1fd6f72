"""Bytes <-> tensors in KServe v2 binary layout: little-endian, row-major, BYTES as uint32 length and content each.

One codec for every place such bytes come from: HTTP binary data, raw requests, gRPC raw contents, shared memory.
Numeric tensors are views of the bytes they came in; nothing is copied.
"""

import sys
from collections.abc import Sequence
from math import prod
from struct import Struct

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.tensor import NUMPY_DTYPES, Tensor

Buffer = bytes | bytearray | memoryview
_LENGTH = Struct("<I")
assert sys.byteorder == "little", "numeric tensors are read in place"


def tensor_from_bytes(
    name: str, datatype: str, shape: Sequence[int], data: Buffer, *, label: str, model: str
) -> Tensor:
    """A tensor over `data`. Raises ServingError(INVALID) when sizes do not match `shape`, in Triton's words."""
    count = prod(shape)
    if datatype == "BYTES":
        return Tensor(name, datatype, tuple(shape), _split_elements(data, count, name, label, model))
    dtype = NUMPY_DTYPES[datatype]
    size = memoryview(data).nbytes
    if size != count * dtype.itemsize:
        raise ServingError(
            Code.INVALID,
            f"{label} input byte size mismatch for input '{name}' for model '{model}'. "
            f"Expected {count * dtype.itemsize}, got {size}",
        )
    if datatype == "BOOL":
        # any non-zero byte is true; numpy's own bool must be 0 or 1
        return Tensor(name, datatype, tuple(shape), (np.frombuffer(data, np.uint8) != 0).reshape(shape))
    return Tensor(name, datatype, tuple(shape), np.frombuffer(data, dtype).reshape(shape))


def tensor_to_bytes(tensor: Tensor) -> bytes:
    """The contents in binary layout. One copy, which every way to a socket needs anyway."""
    if isinstance(tensor.data, np.ndarray):
        return tensor.data.tobytes()
    return b"".join(part for element in tensor.data for part in (_LENGTH.pack(len(element)), element))


def _split_elements(data: Buffer, count: int, name: str, label: str, model: str) -> list[bytes]:
    view = bytes(data)
    elements: list[bytes] = []
    position = 0
    end = len(view)
    where = f"inference input '{name}' for model '{model}'"
    while position < end:
        if end - position < _LENGTH.size:
            raise ServingError(
                Code.INVALID,
                f"{label} incomplete string length indicator for {where}, expecting {_LENGTH.size} bytes but only "
                f"{end - position} bytes available. Please make sure the string length indicator is in one buffer.",
            )
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if length > end - position:
            raise ServingError(
                Code.INVALID,
                f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
                f"{end - position} bytes available",
            )
        if len(elements) == count:
            break
        elements.append(view[position : position + length])
        position += length
    check_num_elements(len(elements) + (position < end), count, where, label)
    return elements


def check_num_elements(got: int, count: int, where: str, label: str) -> None:
    """Raise ServingError(INVALID) unless a BYTES tensor brought as many elements as its shape says."""
    if got > count:
        raise ServingError(
            Code.INVALID, f"{label} unexpected number of string elements {got} for {where}, expecting {count}"
        )
    if got < count:
        raise ServingError(Code.INVALID, f"{label} expected {count} string elements for {where}, got {got}")


def num_bytes(tensors: Sequence[Tensor]) -> int:
    """About how large the tensors are on the wire."""
    return sum(
        tensor.data.nbytes if isinstance(tensor.data, np.ndarray) else sum(map(len, tensor.data)) for tensor in tensors
    )
