"""DLPack capsules in plain Python, so that tensors pass to and from any framework, bfloat16 too.

Layout of the structures: dlpack.h, version 0.8 (the unversioned `dltensor` capsule, which every framework takes).
"""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

import numpy as np

CPU = (1, 0)
_ON_HOST = (1, 3)  # plain memory, and pinned for CUDA
_NAME, _USED = b"dltensor", b"used_dltensor"
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES = {
    **{f"INT{bits}": (_INT, bits) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (_UINT, bits) for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": (_FLOAT, bits) for bits in (16, 32, 64)},
    "BF16": (_BFLOAT, 16),
    "BOOL": (_BOOL, 8),
}
_DATATYPES = {code: name for name, code in _CODES.items()}


class _Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("manager", c_void_p), ("deleter", _Deleter)]

_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [c_void_p, c_char_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [c_void_p, c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [c_void_p, c_char_p]

_exported: dict[int, tuple[Any, ...]] = {}  # address of a structure -> what it points to, until its consumer is done


def _forget(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _destroyed(capsule: int) -> None:
    """A capsule that nobody took still owns its structure."""
    if _is_valid(capsule, _NAME):
        _exported.pop(_pointer(capsule, _NAME), None)


_delete = _Deleter(_forget)
_destroy = ctypes.CFUNCTYPE(None, c_void_p)(_destroyed)


def to_capsule(array: np.ndarray, datatype: str) -> Any:
    """A capsule over the array's memory. Raises TypeError for a datatype DLPack does not have."""
    if datatype not in _CODES:
        raise TypeError(f"DLPack cannot carry datatype {datatype}")
    array = np.ascontiguousarray(array)
    shape = (c_int64 * max(array.ndim, 1))(*array.shape)
    managed = _Managed()
    code, bits = _CODES[datatype]
    managed.tensor.data = array.ctypes.data
    managed.tensor.device = _Device(*CPU)
    managed.tensor.ndim = array.ndim
    managed.tensor.dtype = _DataType(code, bits, 1)
    managed.tensor.shape = ctypes.cast(shape, POINTER(c_int64))
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _exported[address] = (managed, array, shape)
    return _new(address, _NAME, ctypes.cast(_destroy, c_void_p))


def from_capsule(source: Any) -> tuple[str, np.ndarray]:
    """(datatype, a copy) of a capsule or of an object with `__dlpack__`. Raises TypeError, ValueError."""
    capsule = source.__dlpack__() if hasattr(source, "__dlpack__") else source
    if not _is_valid(id(capsule), _NAME):
        raise TypeError(f"expected a DLPack capsule that nobody has taken yet, got {type(capsule).__name__}")
    managed = ctypes.cast(_pointer(id(capsule), _NAME), POINTER(_Managed)).contents
    tensor = managed.tensor
    datatype = _DATATYPES.get((tensor.dtype.code, tensor.dtype.bits))
    if datatype is None or tensor.dtype.lanes != 1:
        raise TypeError(f"DLPack type code {tensor.dtype.code} with {tensor.dtype.bits} bits is not supported")
    if tensor.device.device_type not in _ON_HOST:
        raise ValueError("a tensor on a device: copy it to the host before, tensors travel in host memory")
    copy = _copy(tensor, datatype)
    _rename(id(capsule), _USED)
    if managed.deleter:
        managed.deleter(ctypes.byref(managed))
    return datatype, copy


def _copy(tensor: Any, datatype: str) -> np.ndarray:
    dtype = np.dtype(np.bool_ if datatype == "BOOL" else f"{_KINDS[tensor.dtype.code]}{tensor.dtype.bits // 8}")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
    view = _View(tensor.data + tensor.byte_offset, dtype, shape, strides)
    return np.array(np.asarray(view), order="C")


_KINDS = {_INT: "i", _UINT: "u", _FLOAT: "f", _BFLOAT: "u"}


class _View:
    def __init__(self, address: int, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": dtype.str,
            "shape": shape,
            "strides": strides,
        }
