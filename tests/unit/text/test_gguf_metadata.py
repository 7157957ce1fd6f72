from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.text.gguf_metadata import read_gguf_metadata

WriteGguf = Callable[[dict[str, Any]], Path]
METADATA = {
    "name": "é😀",
    "flag": True,
    "count": -7,
    "half": 0.5,
    "words": ["a", "", "ñ"],
    "ids": [1, 2, 3],
    "none": [],
}


def test_every_kind_of_value_is_read_back(write_gguf: WriteGguf) -> None:
    assert read_gguf_metadata(write_gguf(METADATA)) == METADATA


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_off_is_a_clear_error(write_gguf: WriteGguf, share: float) -> None:
    path = write_gguf(METADATA)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ServingError) as caught:
        read_gguf_metadata(path)
    assert caught.value.code is Code.INVALID
    assert str(path) in caught.value.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(place=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_damaged_file_is_read_or_refused_but_never_breaks_the_reader(
    write_gguf: WriteGguf, place: int, byte: int
) -> None:
    path = write_gguf(METADATA)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = byte
    path.write_bytes(data)
    with suppress(ServingError):
        read_gguf_metadata(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"PK\x03\x04" + bytes(40), "GGUF"), (b"GGUF\x00\x00\x00\x03" + bytes(40), "version"), (b"", "empty")],
)
def test_what_is_no_readable_gguf_file_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ServingError, match=said):
        read_gguf_metadata(path)
