"""From the command line and the environment to `Settings`. Nobody else reads the environment."""

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from gateway.settings import Settings, SettingsError

ENVIRONMENT_PREFIX = "TIDEGATE_"
_TRUE, _FALSE = frozenset({"true", "on", "1", "yes"}), frozenset({"false", "off", "0", "no"})


def from_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from the flags of `tidegate serve` and the environment.

    Raises SettingsError; `--help` prints and exits as usual.
    """
    given = vars(parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(Settings):
        text = environment.get(ENVIRONMENT_PREFIX + setting.name.upper())
        if given.get(setting.name) is not None:
            raw = given[setting.name]
        elif text is not None:
            raw = text.split(setting.metadata["separator"]) if _is_list(setting) else text
        else:
            continue
        values[setting.name] = _convert(setting, raw)
    return Settings(**values)


def parser() -> argparse.ArgumentParser:
    """The flags of `tidegate serve`, grouped as in Settings."""
    result = _Parser(
        prog="tidegate serve",
        usage="tidegate serve --model-repository FOLDER [flags]",
        allow_abbrev=False,
        description="Serve the models of a repository over KServe v2 (HTTP and gRPC) and the OpenAI API.",
        epilog="Every flag is also an environment variable: --http-port is TIDEGATE_HTTP_PORT.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in dataclasses.fields(Settings):
        title = setting.metadata["group"]
        if not title:
            continue
        group = groups.setdefault(title, result.add_argument_group(title))
        flags = ["--" + setting.name.replace("_", "-")]
        if setting.name == "model_repository":
            flags.append("--model-store")
        group.add_argument(
            *flags,
            dest=setting.name,
            metavar=_metavar(setting),
            nargs="?" if _type(setting) is bool else None,
            const="true" if _type(setting) is bool else None,
            action="append" if _is_list(setting) else "store",
            help=setting.metadata["help"] + _default_text(setting),
        )
    return result


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _type(setting: "dataclasses.Field[Any]") -> Any:
    return typing.get_type_hints(Settings)[setting.name]


def _is_list(setting: "dataclasses.Field[Any]") -> bool:
    return typing.get_origin(_type(setting)) is tuple


def _metavar(setting: "dataclasses.Field[Any]") -> str:
    kind = _type(setting)
    if typing.get_origin(kind) is Literal:
        return "|".join(typing.get_args(kind))
    return {bool: "true|false", int: "N", float: "SECONDS"}.get(kind, "TEXT")


def _default_text(setting: "dataclasses.Field[Any]") -> str:
    default = setting.default
    if default in ((), ""):
        return ""
    shown = (
        str(default).lower() if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else default
    )
    return f" (default: {shown})"


def _convert(setting: "dataclasses.Field[Any]", raw: Any) -> Any:
    kind, flag = _type(setting), "--" + setting.name.replace("_", "-")
    if _is_list(setting):
        return tuple(raw)
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if raw not in choices:
            raise SettingsError(f"{flag}: expected one of {', '.join(choices)}, got '{raw}'")
        return raw
    if kind is bool:
        return _boolean(flag, raw)
    if isinstance(kind, types.GenericAlias):
        raise TypeError(f"setting {setting.name} has a type without a conversion: {kind}")
    try:
        return kind(raw)
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}[kind]
        raise SettingsError(f"{flag}: expected {wanted}, got '{raw}'") from None


def _boolean(flag: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise SettingsError(f"{flag}: expected true or false, got '{text}'")
