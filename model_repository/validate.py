"""`tidegate validate`: what is wrong with a repository, found without starting anything."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from backends.api.errors import ServingError
from backends.api.model_config import ModelConfig
from backends.api.registry import absent, known_backends
from backends.parameters import ignored_parameters
from model_repository import layout
from model_repository.checks import problems
from model_repository.complete import complete
from model_repository.findings import ConfigError, Finding, likely
from model_repository.pbtxt import read_text
from model_repository.positions import Place, field_places, place_of
from model_repository.steps import step_problems
from model_repository.texts import no_versions

EngineCheck = Callable[[ModelConfig, Path], None]
"""Raises ServingError for what is wrong with the config or a version folder of a model that has an engine of ours."""
Checks = Mapping[str, EngineCheck]
"""By the backend's name."""
WARMUP_FOLDER = "warmup"


def validate(path: Path, checks: Checks | None = None) -> list[Finding]:
    """Everything wrong with a repository, or with the one model whose folder is given; [] if nothing is.

    What only model files can tell is asked of `checks`, which are called for each version of their models.
    """
    if not path.is_dir():
        return [Finding(str(path), "no such folder, expected a model repository or a model's folder")]
    try:
        folders = model_folders(path)
    except ServingError as error:
        return [Finding(str(path), error.message)]
    if not folders:
        return [Finding(str(path), "holds no models: expected folders with a config.pbtxt and version folders")]
    return [finding for folder in folders for finding in _model_findings(folder, checks or {})]


def model_folders(path: Path) -> list[Path]:
    """The folders of a repository's models; `path` alone if it is a model's. Raises ServingError if it cannot be read."""
    return [path] if _is_model(path) else [folders[0] for folders in layout.scan([path]).values()]


def _is_model(folder: Path) -> bool:
    return layout.config_file(folder) is not None or bool(layout.version_folders(folder))


def _model_findings(folder: Path, checks: Checks) -> list[Finding]:
    configs = sorted((folder / "configs").glob("*.pbtxt"))
    main = layout.config_file(folder)
    if main is None:
        return list(_config_findings(folder, b"", str(folder / layout.CONFIG_FILE), checks))
    return [
        finding
        for file in [main, *configs]
        for finding in _config_findings(folder, file.read_bytes(), str(file), checks)
    ]


def _config_findings(folder: Path, data: bytes, file: str, checks: Checks) -> Iterator[Finding]:
    try:
        config, refused = read_text(data, file)
    except ConfigError as error:
        yield error.finding
        return
    yield from refused
    places = field_places(data.decode("utf-8-sig"))
    there = layout.version_folders(folder)
    chosen = [there[number] for number in layout.choose_versions(config.version_policy, list(there))]
    if not chosen:
        yield Finding(file, no_versions(folder), *place_of("version_policy", places))
    try:
        config = complete(config, folder.name, chosen)
    except ServingError as error:
        if chosen or error.param != "backend":  # which is told by the files of a version
            yield Finding(file, error.message, *place_of(error.param or "", places))
        return
    faults = [
        Finding(file, problem.message, *place_of(problem.path, places))
        for problem in chain(problems(config, completed=False), step_problems(config, folder.parent))
    ]
    if faults or refused:
        yield from faults
        return
    yield from _load_findings(config, folder, chosen, file, places, checks)


def _load_findings(
    config: ModelConfig, folder: Path, chosen: list[Path], file: str, places: dict[str, Place], checks: Checks
) -> Iterator[Finding]:
    """What the files and the backend have against a sound configuration."""
    missing = list(_file_findings(config, folder, chosen))
    yield from missing
    yield from _backend_findings(config, file, places)
    if config.backend in checks and not missing:
        yield from _engine_findings(config, chosen, file, places, checks[config.backend])


def _file_findings(config: ModelConfig, folder: Path, chosen: list[Path]) -> Iterator[Finding]:
    """Files that the configuration names and that are not there."""
    files = {
        folder / spec.label_filename: f"the labels of output '{spec.name}'"
        for spec in config.outputs
        if spec.label_filename
    }
    files |= {
        folder / WARMUP_FOLDER / item.source: f"the data of warm-up sample '{sample.name}'"
        for sample in config.warmup
        for item in sample.inputs.values()
        if item.source not in ("zero_data", "random_data")
    }
    if config.default_model_filename:
        files |= {v / config.default_model_filename: f"the model of backend '{config.backend}'" for v in chosen}
    for path, what in files.items():
        if not path.exists():
            text = "links to what is not there" if path.is_symlink() else "no such file"
            yield Finding(str(path), f"{text}, expected {what} here")


def _backend_findings(config: ModelConfig, file: str, places: dict[str, Place]) -> Iterator[Finding]:
    known = known_backends()
    if config.backend and config.backend not in known:
        text = f"{absent(config.backend)}."
        yield Finding(file, text, *place_of("backend", places), suggestion=likely(config.backend, known))
    for text in ignored_parameters(config):
        yield Finding(file, text, *place_of("parameters", places), is_warning=True)


def _engine_findings(
    config: ModelConfig, chosen: list[Path], file: str, places: dict[str, Place], check: EngineCheck
) -> Iterator[Finding]:
    for version in chosen:
        try:
            check(config, version)
        except ServingError as error:
            yield Finding(file, error.message, *place_of("parameters" if error.param else "", places))
