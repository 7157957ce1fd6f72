"""The command `tidegate`: serve, validate, init."""

import os
import sys
from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path

from gateway.flags import from_arguments
from gateway.settings import Settings, SettingsError
from gateway.triton_flags import translate

USAGE = """usage: tidegate COMMAND ...

commands:
  serve      serve the models of a repository (tidegate serve --help lists the flags)
  validate   check a model repository without starting it: tidegate validate FOLDER
  init       write a config.pbtxt from a model file: tidegate init FOLDER/model.onnx
  version    print the version
"""
PACKAGES = ("backends", "gateway", "kvcache", "model_repository", "openai_api", "scheduler")


def main() -> None:
    """Entry point of the console script. Exits 0 after a clean stop, 1 on a failed start, 2 on bad usage."""
    _refuse_shadowed_packages()
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    commands = {"serve": _serve, "validate": _validate, "init": _init, "version": _version, "--version": _version}
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return
    if command not in commands:
        said = f"tidegate: there is no command '{command}'\n" if command else ""
        print(said + USAGE, end="", file=sys.stderr)
        sys.exit(2)
    sys.exit(commands[command](arguments))


def _serve(arguments: list[str]) -> int:
    try:
        arguments, notes = translate(arguments)
        settings = from_arguments(arguments, os.environ)
        _check_repositories(settings.model_repository)
        return _run(settings, notes)
    except SettingsError as error:
        print(f"tidegate serve: {error}", file=sys.stderr)
        return 2


def _check_repositories(folders: Sequence[str]) -> None:
    if not all(folders) or not folders:
        raise SettingsError("--model-repository: expected a folder with models, got none")
    for folder in folders:
        if not Path(folder).is_dir():
            raise SettingsError(f"--model-repository: no such folder: '{folder}'")


def _run(settings: Settings, notes: Sequence[str]) -> int:
    # libgomp's default spinning doubles a step beside a busy process. Read when the library is loaded,
    # so it is set before anything imports torch, here and in the children.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # No process of ours forks without exec: without this gRPC prints a line for every child that is started.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from gateway.app import run

    return run(settings, notes)


def _validate(arguments: list[str]) -> int:
    from model_repository.validate import model_folders, validate
    from scheduler.checks import CHECKS

    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: tidegate validate FOLDER", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    findings = validate(path, CHECKS)
    for finding in findings:
        print(finding)
    if any(not finding.is_warning for finding in findings):
        return 1
    count = len(model_folders(path))
    print(f"{count} {'model' if count == 1 else 'models'}, no faults")
    return 0


def _init(arguments: list[str]) -> int:
    from backends.api.errors import ServingError
    from model_repository.init_config import init_config

    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: tidegate init FOLDER/model.onnx", file=sys.stderr)
        return 2
    try:
        print(init_config(Path(arguments[0])))
    except ServingError as error:
        print(f"tidegate init: {error.message}", file=sys.stderr)
        return 1
    return 0


def _version(arguments: list[str]) -> int:
    print(metadata.version("tidegate"))
    return 0


def _refuse_shadowed_packages() -> None:
    """Our packages have plain names: say so clearly if another distribution's package stands in front of one."""
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        if not any(Path(place).resolve().parent == home for place in places):
            found = places[0] if places else "nowhere"
            print(f"tidegate: package '{name}' should come from {home}, but is found at {found}", file=sys.stderr)
            print("tidegate: install Tidegate in an environment of its own", file=sys.stderr)
            sys.exit(1)
