"""A model read from disk or from a load request, completed and checked: what a load is about to bring up."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from model_repository import layout
from model_repository.agents import run_agents
from model_repository.checks import problems
from model_repository.complete import complete
from model_repository.findings import ConfigError, Finding
from model_repository.layout import Snapshot
from model_repository.options import RepositoryOptions
from model_repository.pbtxt import parse_json, parse_text
from model_repository.positions import Place, field_places, place_of
from model_repository.texts import no_versions, unknown_to_load

FILE_PREFIX = "file:"


@dataclass(frozen=True, slots=True)
class Override:
    """A load's own configuration (JSON) and files (`file:1/model.onnx` -> content), in place of what is on disk."""

    config: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Candidate:
    """`versions`: version -> its folder. `snapshot` is of the files on disk; `workspace` holds an override's own."""

    config: ModelConfig
    versions: Mapping[str, Path]
    snapshot: Snapshot = ()
    is_override: bool = False
    workspace: "TemporaryDirectory[str] | None" = None


def from_folder(folder: Path, options: RepositoryOptions, snapshot: Snapshot = ()) -> Candidate:
    """The model in `folder`, whose `snapshot` was taken before. Reads the disk.

    Raises ServingError, with file and line where there are any.
    """
    path = layout.config_file(folder, options.config_name)
    file = f"{folder.name}/{path.relative_to(folder) if path else layout.CONFIG_FILE}"
    if path is None and not options.auto_complete:
        raise ConfigError(Finding(file, "no such file, and configs are not completed (--disable-auto-complete-config)"))
    try:
        data = path.read_bytes() if path else b""
    except OSError as error:
        raise ConfigError(Finding(file, f"cannot be read: {error.strerror}")) from error
    config = parse_text(data, file)
    places = field_places(data.decode("utf-8-sig"))
    return _candidate(config, folder.name, folder, _Source(file, places), options, snapshot=snapshot)


def from_override(
    name: str, folder: Path | None, override: Override, options: RepositoryOptions, snapshot: Snapshot = ()
) -> Candidate:
    """The model that a load request describes, over `folder` or, with files, over a temporary folder of those alone.

    Raises ServingError; the temporary folder is then gone.
    """
    source = _Source(f"override config of model '{name}'", {})
    config = parse_json(override.config, source.file)
    if not override.files:
        if folder is None:
            raise unknown_to_load(name)
        return _candidate(config, name, folder, source, options, snapshot=snapshot, is_override=True)
    workspace = TemporaryDirectory(prefix="tidegate-model-")
    try:
        root = Path(workspace.name) / name
        _write_files(root, override.files)
        return _candidate(config, name, root, source, options, is_override=True, workspace=workspace)
    except BaseException:
        workspace.cleanup()
        raise


@dataclass(frozen=True, slots=True)
class _Source:
    file: str
    places: Mapping[str, Place]


def _candidate(
    config: ModelConfig,
    name: str,
    folder: Path,
    source: _Source,
    options: RepositoryOptions,
    *,
    snapshot: Snapshot = (),
    is_override: bool = False,
    workspace: "TemporaryDirectory[str] | None" = None,
) -> Candidate:
    there = layout.version_folders(folder)
    chosen = {str(number): there[number] for number in layout.choose_versions(config.version_policy, list(there))}
    if not chosen:
        raise ServingError(Code.INVALID, no_versions(folder))
    try:
        config = complete(config, name, list(chosen.values()), options.num_gpus)
        run_agents(config, folder)
    except ServingError as error:
        raise _at(source, error.param or "", error.message) from None
    for problem in problems(config, completed=not options.auto_complete):
        raise _at(source, problem.path, problem.message)
    return Candidate(config, chosen, snapshot, is_override, workspace)


def _at(source: _Source, path: str, message: str) -> ConfigError:
    """The place is a line where there are lines, in JSON the field's path."""
    file = f"{source.file}: {path}" if path and not source.places else source.file
    return ConfigError(Finding(file, message, *place_of(path, dict(source.places))))


def _write_files(root: Path, files: Mapping[str, bytes]) -> None:
    root.mkdir(parents=True)
    for key, content in files.items():
        relative = key.removeprefix(FILE_PREFIX)
        layout.check_inside(relative, f"override file '{relative}'")
        folder, slash, _ = relative.partition("/")
        if slash and layout.is_misnamed_version(folder):
            text = f"override file '{relative}': a version is a number from 1 without leading zeros, got '{folder}'"
            raise ServingError(Code.INVALID, text)
        target = root / relative
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise ServingError(
                Code.INVALID, f"override file '{relative}' is both a file and a folder of other override files"
            ) from error
