"""What lies on disk: model folders, version folders, configuration files, and whether anything changed.

    REPOSITORY/MODEL/config.pbtxt             may be absent
    REPOSITORY/MODEL/configs/NAME.pbtxt       taken instead with --model-config-name NAME
    REPOSITORY/MODEL/VERSION/...              VERSION is a number from 1, without leading zeros

Every function reads the disk as it is now and keeps nothing.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from backends.api.errors import Code, ServingError
from backends.api.model_config import VersionPolicy

CONFIG_FILE = "config.pbtxt"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LIKE_VERSION = re.compile(r"[vV]?[-+]?[0-9]+")
_VERSION = re.compile(r"[1-9][0-9]*")
_GENERATED = "__pycache__"  # written by running a model, not by changing it

Snapshot = tuple[tuple[str, int, int], ...]
"""(relative path, mtime in ns, size in bytes) of every file of a model: equal snapshots, unchanged model."""


def check_name(name: str) -> None:
    """Raises ServingError(INVALID) for a model name that is empty, has control characters or could leave its repository."""
    if not name.strip():
        raise ServingError(Code.INVALID, "Model name cannot be empty. Please enter a valid name to deploy.")
    check_inside(name, f"model name '{name}'")
    if "/" in name:
        raise ServingError(Code.INVALID, f"model name '{name}' must not contain path traversal characters")


def check_inside(path: str, subject: str) -> None:
    """Raises ServingError(INVALID) for a relative path that could leave its folder or has control characters.

    `subject` names it in the text.
    """
    if _CONTROL.search(path):
        raise ServingError(Code.INVALID, f"{subject} must not contain control characters")
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise ServingError(Code.INVALID, f"{subject} must not contain path traversal characters")


def scan(repositories: Sequence[Path]) -> dict[str, list[Path]]:
    """Model name -> its folders, in the order of the repositories; more than one where names collide.

    Hidden folders are none of ours (editors and volume mounts keep things there). Raises
    ServingError(UNAVAILABLE) for a repository that cannot be read.
    """
    found: dict[str, list[Path]] = {}
    for repository in repositories:
        for folder in _folders(repository):
            found.setdefault(folder.name, []).append(folder)
    return found


def folders_of(repositories: Sequence[Path], name: str) -> list[Path]:
    """The folders of one model, without listing the others."""
    return [folder for repository in repositories if _is_folder(folder := repository / name)]


def version_folders(folder: Path) -> dict[int, Path]:
    """Version -> folder, lowest first. Folders with other names are not versions."""
    numbered = (entry for entry in folder.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir())
    return {int(entry.name): entry for entry in sorted(numbered, key=lambda entry: int(entry.name))}


def misnamed_versions(folder: Path) -> list[str]:
    """Folders that are named as a version may have been meant, and are none."""
    return sorted(entry.name for entry in folder.iterdir() if is_misnamed_version(entry.name) and entry.is_dir())


def is_misnamed_version(name: str) -> bool:
    return _LIKE_VERSION.fullmatch(name) is not None and _VERSION.fullmatch(name) is None


def choose_versions(policy: VersionPolicy, versions: Sequence[int]) -> list[int]:
    """The versions that `policy` serves out of those that are there, lowest first."""
    there = sorted(versions)
    if policy.specific:
        return [version for version in there if version in policy.specific]
    return there[-policy.latest :] if policy.latest else there


def config_file(folder: Path, config_name: str = "") -> Path | None:
    """The configuration to read: `configs/<config_name>.pbtxt` where it exists, else config.pbtxt, else none."""
    named = [folder / "configs" / f"{config_name}.pbtxt"] if config_name else []
    return next((path for path in [*named, folder / CONFIG_FILE] if path.is_file()), None)


def snapshot(folder: Path) -> Snapshot:
    """The state of every file below `folder`, through links, each folder once."""
    return tuple(sorted(_files(folder, folder, set())))


def look(folders: Sequence[Path]) -> Snapshot:
    """The snapshot of a model's folder; of several of the same name, of all of them."""
    if len(folders) == 1:
        return snapshot(folders[0])
    return tuple((f"{folder}/{path}", mtime, size) for folder in folders for path, mtime, size in snapshot(folder))


def content(files: Snapshot, version: str) -> Snapshot:
    """What of a model's snapshot one version runs on: not its configuration, not other versions."""
    return tuple(entry for entry in files if _belongs(entry[0], version))


def _belongs(path: str, version: str) -> bool:
    top, slash, _ = path.partition("/")
    if slash and _VERSION.fullmatch(top):
        return top == version
    return path != CONFIG_FILE and not (slash and top == "configs")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def _folders(repository: Path) -> list[Path]:
    try:
        entries = sorted(repository.iterdir())
    except OSError as error:
        raise ServingError(
            Code.UNAVAILABLE, f"model repository '{repository}' cannot be read: {error.strerror}"
        ) from error
    return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _files(folder: Path, root: Path, seen: set[tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    try:
        here = folder.stat()
        entries = list(os.scandir(folder))
    except OSError:  # removed while we look: the next look finds it gone
        return
    if (here.st_dev, here.st_ino) in seen:
        return
    seen.add((here.st_dev, here.st_ino))
    for entry in entries:
        if entry.name == _GENERATED:
            continue
        if entry.is_dir():
            # an empty version folder counts too
            yield str(Path(entry.path).relative_to(root)) + "/", 0, 0
            yield from _files(Path(entry.path), root, seen)
            continue
        try:
            status = entry.stat()
        except OSError:
            continue
        yield str(Path(entry.path).relative_to(root)), status.st_mtime_ns, status.st_size
