"""Shared memory and DLPack under custom models."""

import gc
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.python import arena
from backends.python.arena import Arena
from backends.python.dlpack import _exported
from backends.python.frame_codec import FrameError
from backends.python.frames import TensorFrame
from backends.python.packing import INLINE, Packer, Unpacker, join_strings, split_strings
from backends.python.pb_tensor import Tensor, TritonModelException


def pair() -> tuple[Arena, Arena]:
    """A writer's and a reader's view of one arena."""
    fd = arena.create()
    return Arena(os.dup(fd)), Arena(fd)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300_000)), max_size=60))
def test_blocks_never_overlap_and_all_that_is_freed_is_one_gap_again(steps: list[tuple[bool, int]]) -> None:
    writer, _ = pair()
    whole = list(writer._gaps)
    held: dict[int, int] = {}
    for takes, size in steps:
        if takes or not held:
            offset = writer.allocate(size)
            assert offset is not None
            assert all(offset + size <= start or start + length <= offset for start, length in held.items())
            held[offset] = size
        else:
            offset = sorted(held)[size % len(held)]
            del held[offset]
            writer.free(offset)
    assert writer.num_held == len(held)
    for offset in held:
        writer.free(offset)
    assert writer._gaps == whole


def test_a_block_is_released_with_the_last_array_over_it() -> None:
    writer, reader = pair()
    packer = Packer(writer)
    array = np.arange(INLINE, dtype=np.int32).reshape(2, -1)
    frame = packer.pack("x", "INT32", array.shape, array)
    assert packer.buffers == []
    got = Unpacker(memoryview(b""), reader).take(frame)
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got, array)
    part = got[1:, 5:]
    del got
    gc.collect()
    assert list(reader.released) == []
    del part
    gc.collect()
    assert list(reader.released) == [frame.offset]


def test_a_full_arena_sends_tensors_inline() -> None:
    writer, reader = pair()
    writer._gaps = []
    packer = Packer(writer)
    array = np.ones(INLINE, np.float64)
    frame = packer.pack("x", "FP64", array.shape, array)
    got = Unpacker(memoryview(b"".join(packer.buffers)), reader).take(frame)
    assert np.array_equal(np.asarray(got), array)


@pytest.mark.parametrize(
    "frame",
    [
        TensorFrame("x", "FP32", [2], 4, -1),
        TensorFrame("x", "FP32", [-1], 8, -1),
        TensorFrame("x", "FP99", [2], 8, -1),
        TensorFrame("x", "FP32", [4], 16, -1),
        TensorFrame("x", "FP32", [2], 8, 1 << 60),
        TensorFrame("x", "FP32", [2], 12, 0),
        TensorFrame("x", "FP32", [-2, -1], 8, 0),
        TensorFrame("x", "BYTES", [3], 8, -1),
        TensorFrame("x", "BYTES", [1], 3, -1),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(frame: TensorFrame) -> None:
    _, reader = pair()
    with pytest.raises(FrameError, match="tensor 'x'"):
        Unpacker(memoryview(b"\1\0\0\0a\3\0\0"), reader).take(frame)


@given(st.lists(st.binary(max_size=20)))
def test_strings_come_back_as_they_were(items: list[bytes]) -> None:
    assert split_strings(join_strings(items)) == items


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.uint8, np.int16, np.uint32, np.int64, np.float16, np.float32, np.float64]
)
def test_dlpack_carries_every_numpy_type_both_ways(dtype: type) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    assert np.array_equal(np.from_dlpack(Tensor("x", array)), array)
    taken = Tensor.from_dlpack("x", array[::2, 1:])
    assert taken.as_numpy().dtype == dtype
    assert np.array_equal(taken.as_numpy(), array[::2, 1:])
    assert Tensor.from_dlpack("x", Tensor("y", array).to_dlpack()).shape() == [3, 4]


def test_dlpack_frees_what_its_taker_is_done_with_and_what_nobody_takes() -> None:
    before = len(_exported)
    tensor = Tensor("x", np.ones(3, np.float32))
    taken = np.from_dlpack(tensor)
    unused = tensor.to_dlpack()
    assert len(_exported) == before + 2
    del taken, unused
    gc.collect()
    assert len(_exported) == before


def test_dlpack_refuses_what_it_cannot_carry() -> None:
    with pytest.raises(TritonModelException, match="strings"):
        Tensor("x", np.array([b"a"], dtype=object)).to_dlpack()
    capsule = Tensor("x", np.ones(1, np.int8)).to_dlpack()
    Tensor.from_dlpack("y", capsule)
    with pytest.raises(TritonModelException, match="nobody has taken"):
        Tensor.from_dlpack("y", capsule)
