"""A model's location leads to its file or folder, or says what is missing."""

import sys
from pathlib import Path

import pytest

from backends.api.errors import ServingError
from backends.lm.location import find_model


def test_a_gguf_file_and_a_folder_are_found_relative_to_the_model(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    assert find_model("a.gguf", tmp_path) == tmp_path / "a.gguf"
    assert find_model("hf", tmp_path) == tmp_path / "hf"
    assert find_model(str(tmp_path / "hf"), Path("/elsewhere")) == tmp_path / "hf"


def test_a_folder_with_one_gguf_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00002.gguf").touch()
    (tmp_path / "m-00002-of-00002.gguf").touch()
    assert find_model(".", tmp_path).name == "m-00001-of-00002.gguf"
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ServingError, match=r"expected one \.gguf file, got m-00001-of-00002\.gguf, other\.gguf"):
        find_model(".", tmp_path)


def test_a_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tidegate_weights_for_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "w.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model(f"package:{package.name}", Path()) == package / "w.gguf"
    assert find_model(f"package:{package.name}/w.gguf", Path()) == package / "w.gguf"
    assert package.name not in sys.modules


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("nowhere", "model location 'nowhere': expected a model there"),
        ("file.bin", "expected a .gguf file or a folder"),
        ("empty", "expected config.json or a .gguf file"),
        ("package:no_such_package", "package 'no_such_package' is not installed"),
        ("package:os.path", "package 'os.path' is not installed"),
        ("package:", "package '' is not installed"),
    ],
)
def test_what_is_not_there_is_said(location: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.bin").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServingError) as caught:
        find_model(location, tmp_path)
    assert message in caught.value.message
