"""`pb_utils.Tensor` and the errors of a custom model."""

from typing import Any

import numpy as np

from backends.api.tensor import DATATYPE_OF_NUMPY
from backends.api.tensor import Tensor as WireTensor
from backends.python import dlpack


class TritonModelException(Exception):  # noqa: N818 - the name models know
    """Raised for a misuse of `pb_utils`, and what a model may raise itself."""


class TritonError:
    """An error that a response carries."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = 0, 1, 2, 3
    UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = 4, 5, 6, 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if code not in _TO_CODE:
            raise TritonModelException(f"unknown error code {code!r}")
        self._message = str(message)
        self._code = code

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {_TO_CODE[self._code]})"


# a TritonError's code -> the name of the server's `Code`
_TO_CODE = {
    TritonError.UNKNOWN: "UNKNOWN",
    TritonError.INTERNAL: "INTERNAL",
    TritonError.NOT_FOUND: "NOT_FOUND",
    TritonError.INVALID_ARG: "INVALID",
    TritonError.UNAVAILABLE: "UNAVAILABLE",
    TritonError.UNSUPPORTED: "UNSUPPORTED",
    TritonError.ALREADY_EXISTS: "ALREADY_EXISTS",
    TritonError.CANCELLED: "CANCELLED",
}
_FROM_CODE = {
    **{name: code for code, name in _TO_CODE.items()},
    "TOO_LARGE": TritonError.INVALID_ARG,
    "OVERLOADED": TritonError.UNAVAILABLE,
    "DEADLINE": TritonError.UNAVAILABLE,
}


def code_name(error: TritonError) -> str:
    return _TO_CODE[error.code()]


def error_of(name: str, message: str) -> TritonError:
    return TritonError(message, _FROM_CODE.get(name, TritonError.INTERNAL))


class Tensor:
    """A named array: over numpy, or for BYTES over a list of bytes that becomes an object array when asked for."""

    __slots__ = ("_array", "_datatype", "_name", "_shape", "_strings")

    def __init__(self, name: Any, array: Any) -> None:
        datatype = DATATYPE_OF_NUMPY.get(array.dtype) if type(array) is np.ndarray and type(name) is str else None
        if datatype is not None:  # the quick way of most tensors
            self._name: str = name
            self._datatype = datatype
            self._shape = array.shape
            self._array: np.ndarray | None = array
            self._strings: list[bytes] | None = None
            return
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            got = f"{type(name).__name__}, {type(array).__name__}"
            raise TypeError(f"Tensor(name, array) takes a str and a numpy.ndarray, got {got}")
        try:
            wire = WireTensor.from_numpy(name, array)
        except Exception as error:
            raise TritonModelException(str(error)) from None
        self._name = name
        self._datatype = wire.datatype
        self._shape = wire.shape
        self._array = array
        self._strings = wire.data if isinstance(wire.data, list) else None

    @classmethod
    def made_of(cls, name: str, datatype: str, shape: "tuple[int, ...]", data: "np.ndarray | list[bytes]") -> "Tensor":
        """A tensor as it came over the wire."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        if isinstance(data, list):
            tensor._array, tensor._strings = None, data
        else:
            tensor._array, tensor._strings = data, None
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self._shape)

    def triton_dtype(self) -> str:
        return self._datatype

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> np.ndarray:
        """The array itself; BYTES as an object array of bytes, BF16 as the 16 bits of each number."""
        if self._array is None:
            assert self._strings is not None
            self._array = WireTensor(self._name, "BYTES", self._shape, self._strings).as_numpy()
        return self._array

    def to_dlpack(self) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have a type for strings")
        return dlpack.to_capsule(self.as_numpy(), self._datatype)

    @staticmethod
    def from_dlpack(name: str, source: Any) -> "Tensor":
        """From a capsule or any tensor with `__dlpack__`, whose contents are copied."""
        try:
            datatype, array = dlpack.from_capsule(source)
        except (TypeError, ValueError) as error:
            raise TritonModelException(str(error)) from None
        return Tensor.made_of(name, datatype, array.shape, array)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU

    @property
    def contents(self) -> "np.ndarray | list[bytes]":
        """What goes over the wire."""
        if self._strings is not None:
            return self._strings
        assert self._array is not None
        return self._array
