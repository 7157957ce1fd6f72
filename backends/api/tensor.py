"""Tensors as the KServe v2 protocol names them, holding numpy views and no copies."""

from dataclasses import dataclass
from math import prod

import numpy as np

from backends.api.errors import Code, ServingError

# KServe v2 datatype -> numpy dtype of its elements. BF16 has no numpy dtype and travels as its 16 bits;
# BYTES elements vary in length and travel as a flat list of bytes.
NUMPY_DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),
}
DATATYPES = frozenset(NUMPY_DTYPES) | {"BYTES"}
DATATYPE_OF_NUMPY = {dtype: name for name, dtype in NUMPY_DTYPES.items() if name != "BF16"}


@dataclass(slots=True)
class Tensor:
    """A named array: `data` is a numpy array of `shape`, or for BYTES a flat row-major list of bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: "np.ndarray | list[bytes]"

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @classmethod
    def from_numpy(cls, name: str, array: np.ndarray) -> "Tensor":
        """A tensor over `array`; object, string and bytes arrays become BYTES (text as UTF-8).

        Raises ServingError(INTERNAL) for a dtype the protocol cannot carry.
        """
        if array.dtype.kind in "OSU":
            return cls(name, "BYTES", array.shape, [_as_bytes(value) for value in array.ravel()])
        datatype = DATATYPE_OF_NUMPY.get(array.dtype)
        if datatype is None:
            raise ServingError(Code.INTERNAL, f"tensor '{name}': numpy dtype {array.dtype} has no KServe v2 datatype")
        return cls(name, datatype, array.shape, array)

    def as_numpy(self) -> np.ndarray:
        """An array of `shape`: the data itself, or for BYTES an object array of bytes."""
        if isinstance(self.data, np.ndarray):
            return self.data
        array = np.empty(len(self.data), dtype=object)
        array[:] = self.data
        return array.reshape(self.shape)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
