"""Our GGUF reader sees what the gguf package wrote, and says what is wrong with a bad file."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from backends.api.errors import Code, ServingError
from backends.lm.gguf import read_gguf


def write(path: Path, count: int = 3) -> dict[str, np.ndarray]:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_float32("llama.rope.freq_base", 1e5)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ü", "▁the"])
    writer.add_array("tokenizer.ggml.token_type", [1, 3, 1])
    arrays = {f"t{i}": np.random.default_rng(i).normal(size=(i + 2, 5)).astype(np.float32) for i in range(count)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


def test_metadata_and_tensors_come_back_as_written(tmp_path: Path) -> None:
    arrays = write(tmp_path / "m.gguf")
    file = read_gguf(tmp_path / "m.gguf")
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["llama.rope.freq_base"] == 1e5
    assert file.metadata["tokenizer.ggml.add_bos_token"] is False
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "ü", "▁the"]
    np.testing.assert_array_equal(file.metadata["tokenizer.ggml.token_type"], [1, 3, 1])
    assert file.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = file.tensors[name]
        assert (tensor.format, tensor.shape) == ("F32", array.shape)
        np.testing.assert_array_equal(tensor.data.view("<f4").reshape(array.shape), array)


def test_a_file_cut_off_anywhere_in_its_head_is_a_clear_error(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    head = whole.index(b"t2") + 2 + 4 + 16 + 4 + 7
    for size in range(1, head, 7):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ServingError, match=r"cut\.gguf") as caught:
            read_gguf(tmp_path / "cut.gguf")
        assert caught.value.code is Code.INVALID


def test_damaged_heads_raise_nothing_but_serving_errors(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    whole = bytearray((tmp_path / "m.gguf").read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(300):
        bad = whole.copy()
        for at in rng.integers(4, 500, 3):
            bad[at] = rng.integers(256)
        (tmp_path / "bad.gguf").write_bytes(bad)
        try:
            read_gguf(tmp_path / "bad.gguf")
        except ServingError as caught:
            assert "bad.gguf" in caught.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable GGUF file"),
        (b"PK\x03\x04 zip", "expected a GGUF file, got one that begins with b'PK"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(16), "expected GGUF version 2 or 3, got 1"),
    ],
)
def test_what_is_not_gguf_is_said_to_be_so(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ServingError, match=message):
        read_gguf(tmp_path / "x.gguf")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="no such file") as caught:
        read_gguf(tmp_path / "none.gguf")
    assert caught.value.code is Code.NOT_FOUND


def test_a_split_file_is_read_with_its_other_parts(tmp_path: Path) -> None:
    for part in (1, 2):
        writer = gguf.GGUFWriter(tmp_path / f"m-{part:05d}-of-00002.gguf", "llama")
        writer.add_uint16("split.count", 2)
        writer.add_tensor(f"t{part}", np.full((2, 3), part, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    assert read_gguf(tmp_path / "m-00001-of-00002.gguf").tensors.keys() == {"t1", "t2"}
    with pytest.raises(ServingError, match="expected the first part of 2"):
        read_gguf(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(ServingError, match=r"m-00002-of-00002\.gguf: no such file"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")
