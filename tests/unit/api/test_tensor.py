"""Tensors over numpy arrays."""

import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.api.tensor import NUMPY_DTYPES, Tensor


@pytest.mark.parametrize("datatype", sorted(set(NUMPY_DTYPES) - {"BF16"}))
def test_numpy_arrays_keep_their_datatype_shape_and_memory(datatype: str) -> None:
    array = np.zeros((2, 3), NUMPY_DTYPES[datatype])
    tensor = Tensor.from_numpy("x", array)
    assert (tensor.datatype, tensor.shape, tensor.num_elements) == (datatype, (2, 3), 6)
    assert np.shares_memory(tensor.as_numpy(), array)


def test_text_and_objects_become_bytes_and_come_back_in_shape() -> None:
    tensor = Tensor.from_numpy("x", np.array([["é", b"\xff"], ["", "b"]], dtype=object))
    assert tensor.datatype == "BYTES"
    assert tensor.data == ["é".encode(), b"\xff", b"", b"b"]
    assert tensor.as_numpy().shape == (2, 2)
    assert tensor.as_numpy()[0, 1] == b"\xff"


def test_a_dtype_without_a_datatype_is_named() -> None:
    with pytest.raises(ServingError, match="complex64") as caught:
        Tensor.from_numpy("x", np.zeros(1, np.complex64))
    assert caught.value.code is Code.INTERNAL
