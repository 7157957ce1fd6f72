import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.api.errors import Code, ServingError
from gateway.shared_memory import CudaSharedMemory, SharedMemory, decode_cuda_handle

KEY = f"/tidegate_test_{uuid.uuid4().hex}"


@pytest.fixture
def shared_object() -> Iterator[Path]:
    path = Path("/dev/shm") / KEY.lstrip("/")
    path.write_bytes(bytes(range(200)))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def regions(shared_object: Path) -> SharedMemory:
    memory = SharedMemory(allowed=True)
    memory.register("r", KEY, 100, 64)
    return memory


def refusal(code: Code, act: object, *arguments: object) -> str:
    assert callable(act)
    with pytest.raises(ServingError) as caught:
        act(*arguments)
    assert caught.value.code is code
    return caught.value.message


def test_a_window_is_exactly_the_bytes_meant(regions: SharedMemory, shared_object: Path) -> None:
    assert bytes(regions.window("r", 16, 4).read()) == bytes([116, 117, 118, 119])
    regions.window("r", 60, 4).write("OUT", b"abcd")
    assert shared_object.read_bytes()[156:168] == bytes([156, 157, 158, 159, *b"abcd", 164, 165, 166, 167])


@pytest.mark.parametrize("offset", [64, 65, 2**63 - 8, -4])
def test_an_offset_outside_the_region_is_refused(regions: SharedMemory, offset: int) -> None:
    assert refusal(Code.INVALID, regions.window, "r", offset, 16) == "Invalid offset for shared memory region: 'r'"


@pytest.mark.parametrize(("offset", "size"), [(60, 16), (0, 65), (0, 0), (63, 2)])
def test_a_window_past_the_regions_end_is_refused(regions: SharedMemory, offset: int, size: int) -> None:
    expected = "Invalid offset + byte size for shared memory region: 'r'"
    assert refusal(Code.INVALID, regions.window, "r", offset, size) == expected


def test_results_that_do_not_fit_the_window_are_refused(regions: SharedMemory) -> None:
    assert refusal(Code.INTERNAL, regions.window("r", 0, 8).write, "OUT", bytes(16)) == (
        "shared memory size specified with the request for output 'OUT' (8 bytes) should be at least 16 bytes to hold "
        "the results"
    )


def test_registering_checks_the_name_the_object_and_its_size(regions: SharedMemory) -> None:
    taken = refusal(Code.ALREADY_EXISTS, regions.register, "r", KEY, 0, 8)
    assert taken == "shared memory region 'r' already in manager"
    assert (
        refusal(Code.INTERNAL, regions.register, "x", "/nope", 0, 8) == "Unable to open shared memory region: '/nope'"
    )
    assert "must have a name" in refusal(Code.INVALID, regions.register, "", KEY, 0, 8)
    for offset, size in ((0, 201), (200, 1), (0, 0), (2**63, 1)):
        text = refusal(Code.INTERNAL, regions.register, "x", KEY, offset, size)
        assert text == f"Invalid shared memory region: '{KEY}'"


@pytest.mark.parametrize("key", ["/../etc/passwd", "..", "/", "", "a/b", "/triton_python_backend_shm_region_1", "a\0b"])
def test_a_key_is_a_plain_name_of_shared_memory(regions: SharedMemory, key: str) -> None:
    assert "is not one that a client may register" in refusal(Code.INVALID, regions.register, "x", key, 0, 8)


def test_unregistering_is_safe_while_a_request_uses_the_region(regions: SharedMemory, shared_object: Path) -> None:
    window = regions.window("r", 0, 4)
    regions.unregister("r")
    shared_object.unlink()
    window.write("OUT", b"done")
    assert bytes(window.read()) == b"done"
    assert refusal(Code.NOT_FOUND, regions.window, "r", 0, 4) == "Unable to find shared memory region: 'r'"
    regions.unregister("r")


def test_an_object_made_shorter_is_an_error_and_no_crash(regions: SharedMemory, shared_object: Path) -> None:
    window = regions.window("r", 0, 64)
    os.truncate(shared_object, 110)
    assert "shorter" in refusal(Code.INVALID, window.read)
    assert "shorter" in refusal(Code.INVALID, window.write, "OUT", bytes(64))
    assert shared_object.stat().st_size == 110


def num_descriptors() -> int:
    gc.collect()  # what other tests left behind is closed now and not while this one counts
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_given_back(regions: SharedMemory) -> None:
    before = num_descriptors()
    for _ in range(20):
        regions.register("x", KEY, 0, 8)
        regions.unregister("x")
        with pytest.raises(ServingError):
            regions.register("x", KEY, 0, 10_000)
    assert num_descriptors() == before


def test_status_lists_regions_and_refuses_unknown_names(regions: SharedMemory) -> None:
    (region,) = regions.status()
    assert (region.name, region.key, region.offset, region.byte_size) == ("r", KEY, 100, 64)
    assert regions.status("r") == [region]
    assert refusal(Code.NOT_FOUND, regions.status, "zz") == "Unable to find system shared memory region: 'zz'"
    regions.unregister()
    assert regions.status() == []


def test_everything_is_refused_unless_allowed() -> None:
    memory, cuda = SharedMemory(allowed=False), CudaSharedMemory(allowed=False)
    for act, arguments in (
        (memory.register, ("x", KEY, 0, 1)),
        (memory.status, ()),
        (memory.unregister, ()),
        (memory.window, ("x", 0, 1)),
        (cuda.register, ("x", bytes(64), 0, 1)),
        (cuda.status, ()),
        (cuda.unregister, ()),
    ):
        assert "Client shared memory is disabled" in refusal(Code.UNSUPPORTED, act, *arguments)


def test_cuda_regions_are_checked_and_clearly_refused() -> None:
    cuda = CudaSharedMemory(allowed=True)
    assert "no GPU" in refusal(Code.UNSUPPORTED, cuda.register, "x", bytes(64), 0, 16)
    bad = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
    assert refusal(Code.INVALID, cuda.register, "x", bytes(3), 0, 16) == bad
    assert refusal(Code.INVALID, decode_cuda_handle, "!!") == bad
    assert cuda.status() == []
    assert "Unable to find cuda" in refusal(Code.NOT_FOUND, cuda.status, "x")
