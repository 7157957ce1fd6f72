"""What counts as a model, a version and a change on disk."""

import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import ServingError
from backends.api.model_config import VersionPolicy
from model_repository.layout import (
    check_inside,
    check_name,
    choose_versions,
    config_file,
    scan,
    snapshot,
    version_folders,
)

policies = st.builds(VersionPolicy, st.integers(0, 4), st.lists(st.integers(1, 9), max_size=3).map(tuple))


def test_versions_are_numbered_folders_lowest_first(tmp_path: Path) -> None:
    for name in ("10", "2", "1", "0", "01", "-3", "v4", "5x", "٣"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").write_text("a file")
    assert list(version_folders(tmp_path)) == [1, 2, 10]


@given(policies, st.sets(st.integers(1, 9)))
def test_a_policy_chooses_from_what_is_there(policy: VersionPolicy, there: set[int]) -> None:
    chosen = choose_versions(policy, list(there))
    assert chosen == sorted(set(chosen) & there)
    if policy.specific:
        assert set(chosen) == there & set(policy.specific)
    elif policy.latest:
        assert chosen == sorted(there)[-policy.latest :]
    else:
        assert set(chosen) == there


def test_models_are_the_visible_folders_of_every_repository(tmp_path: Path) -> None:
    for path in ("a/x", "a/y", "a/.git", "b/x"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "a" / "README.md").touch()
    found = scan([tmp_path / "a", tmp_path / "b"])
    assert found == {"x": [tmp_path / "a/x", tmp_path / "b/x"], "y": [tmp_path / "a/y"]}


def test_a_named_config_stands_before_the_plain_one(tmp_path: Path) -> None:
    assert config_file(tmp_path) is None
    (tmp_path / "config.pbtxt").touch()
    assert config_file(tmp_path, "big") == tmp_path / "config.pbtxt"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "big.pbtxt").touch()
    assert config_file(tmp_path, "big") == tmp_path / "configs" / "big.pbtxt"
    assert config_file(tmp_path) == tmp_path / "config.pbtxt"


def test_every_change_below_a_folder_changes_its_snapshot(tmp_path: Path) -> None:
    seen = [snapshot(tmp_path)]

    def changed() -> bool:
        seen.append(snapshot(tmp_path))
        return seen[-1] != seen[-2]

    (tmp_path / "1").mkdir()
    assert changed()
    (tmp_path / "1" / "model").write_bytes(b"a")
    assert changed()
    (tmp_path / "1" / "model").write_bytes(b"ab")
    assert changed()
    os.utime(tmp_path / "1" / "model", ns=(1, 1))
    assert changed()
    (tmp_path / "1" / "model").unlink()
    assert changed()
    assert not changed()


def test_what_running_a_model_writes_is_no_change(tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "model.pyc").touch()
    assert snapshot(tmp_path) == before


def test_links_are_followed_and_a_loop_ends(tmp_path: Path) -> None:
    model, store = tmp_path / "model", tmp_path / "store"
    model.mkdir()
    store.mkdir()
    (store / "weights").write_bytes(b"a")
    (model / "1").symlink_to(store)
    (store / "back").symlink_to(model)
    before = snapshot(model)
    assert "1/weights" in [path for path, _, _ in before]
    (store / "weights").write_bytes(b"abc")
    assert snapshot(model) != before


@given(st.text(st.sampled_from("a./\\\0"), max_size=8))
def test_an_accepted_path_never_leaves_its_folder(path: str) -> None:
    try:
        check_inside(path, "file")
    except ServingError:
        return
    root = Path("/root/folder")
    resolved = Path(os.path.normpath(root / path))
    assert root in resolved.parents


@pytest.mark.parametrize("name", ["a\nE1201 forged", "\x1b[31mred", "a\0b", "a\x85b", "a\u2028b"])
def test_no_control_character_comes_into_a_name(name: str) -> None:
    for check in (check_name, partial(check_inside, subject="override file")):
        with pytest.raises(ServingError, match="must not contain control characters"):
            check(name)


def test_an_unreadable_repository_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match=r"nowhere' cannot be read: No such file"):
        scan([tmp_path / "nowhere"])
