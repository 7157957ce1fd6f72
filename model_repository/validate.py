"""`tidegate validate`: what is wrong with a repository, found without starting anything."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from backends.api.errors import ServingError
from backends.api.model_config import ModelConfig
from backends.api.registry import absent, known_backends
from model_repository import layout
from model_repository.checks import problems
from model_repository.complete import OWN_ENGINES, complete
from model_repository.findings import ConfigError, Finding, likely
from model_repository.pbtxt import read_text
from model_repository.positions import Place, field_places, place_of

EngineCheck = Callable[[ModelConfig, Path], None]
"""Raises ServingError for what is wrong with the config or a version folder of a model that has an engine of ours."""
Checks = Mapping[str, EngineCheck]
"""By the backend's name."""


def validate(path: Path, checks: Checks | None = None) -> list[Finding]:
    """Everything wrong with a repository, or with the one model whose folder is given; [] if nothing is.

    Model files are not opened: what only they can tell is not asked for. `checks` are called for each version of
    their models.
    """
    if not path.is_dir():
        return [Finding(str(path), "no such folder, expected a model repository or a model's folder")]
    try:
        folders = [path] if _is_model(path) else [folders[0] for folders in layout.scan([path]).values()]
    except ServingError as error:
        return [Finding(str(path), error.message)]
    if not folders:
        return [Finding(str(path), "holds no models: expected folders with a config.pbtxt and version folders")]
    return [finding for folder in folders for finding in _model_findings(folder, checks or {})]


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
    try:
        config = complete(config, folder.name, chosen)
    except ServingError as error:
        yield Finding(file, error.message, *place_of(error.param or "", places))
        return
    for problem in problems(config, completed=False):
        yield Finding(file, problem.message, *place_of(problem.path, places))
    yield from _version_findings(config, folder, chosen, file, places)
    yield from _backend_findings(config, file, places)
    if config.backend in checks:
        yield from _engine_findings(config, chosen, file, places, checks[config.backend])


def _version_findings(
    config: ModelConfig, folder: Path, chosen: list[Path], file: str, places: dict[str, Place]
) -> Iterator[Finding]:
    if not chosen:
        text = f"at least one version must be available under the version policy of model '{config.name}'"
        hint = f": put the model into {folder / '1'}" if not layout.version_folders(folder) else ""
        yield Finding(file, text + hint, *place_of("version_policy", places))
    if config.default_model_filename:
        for version in chosen:
            if not (version / config.default_model_filename).exists():
                text = f"no such file, expected the model of backend '{config.backend}' here"
                yield Finding(str(version / config.default_model_filename), text)


def _backend_findings(config: ModelConfig, file: str, places: dict[str, Place]) -> Iterator[Finding]:
    known = [*known_backends(), *OWN_ENGINES]
    if config.backend and config.backend not in known:
        text = f"{absent(config.backend)}."
        yield Finding(file, text, *place_of("backend", places), suggestion=likely(config.backend, known))


def _engine_findings(
    config: ModelConfig, chosen: list[Path], file: str, places: dict[str, Place], check: EngineCheck
) -> Iterator[Finding]:
    for version in chosen:
        try:
            check(config, version)
        except ServingError as error:
            yield Finding(file, error.message, *place_of("parameters", places))
