"""Keys as operators write them: a TOML file with rights, a plain file with a key a line, or an environment variable."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.keys import EVERY_FACE, ORDINARY_FACES, Face, Key, KeyRing, digest_of
from gateway.settings import Settings, SettingsError

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_LIMITS = ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute")
_MEMBERS = ("name", "key", "models", "faces", *_LIMITS, "priority")


def key_ring(settings: Settings) -> KeyRing:
    """Every key that `settings` names. Raises SettingsError, which says where and never what the key is."""
    keys: list[Key] = []
    if settings.api_key_file:
        keys += read_key_file(Path(settings.api_key_file))
        if not keys:
            raise SettingsError(f"--api-key-file: {settings.api_key_file} has no keys")
    for number, text in enumerate(settings.api_keys, 1):
        keys.append(Key(name=f"env-{number}", digest=_digest(text, "TIDEGATE_API_KEYS")))
    for number, text in enumerate(settings.admin_api_keys, 1):
        digest = _digest(text, "TIDEGATE_ADMIN_API_KEYS")
        keys.append(Key(name=f"admin-{number}", digest=digest, faces=EVERY_FACE))
    _check_different(keys)
    return KeyRing(keys)


def read_key_file(path: Path) -> list[Key]:
    """The keys of a file: TOML with `[[keys]]` tables where its name ends so, else lines of `KEY` or `NAME KEY`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"--api-key-file: cannot read {path}: {reason}") from None
    return _from_toml(text, path) if path.suffix == ".toml" else list(_from_lines(text, path))


def _from_lines(text: str, path: Path) -> Iterable[Key]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}:{number}"
        if len(words) > 2:
            raise SettingsError(f"{where}: expected KEY or NAME KEY, got {len(words)} words")
        yield Key(name=words[0] if len(words) == 2 else f"line-{number}", digest=_digest(words[-1], where))


def _from_toml(text: str, path: Path) -> list[Key]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # the parser's message may quote what it could not read, and that may be a key
        place = re.search(r"\(at .*\)", str(error))
        raise SettingsError(f"{path}: not valid TOML {place.group() if place else ''}".rstrip()) from None
    tables = document.get("keys")
    if set(document) - {"keys"} or not isinstance(tables, list):
        raise SettingsError(f"{path}: expected [[keys]] tables and nothing else")
    return [_from_table(table, f"{path}: keys[{index}]") for index, table in enumerate(tables)]


def _from_table(table: Any, where: str) -> Key:
    if not isinstance(table, dict):
        raise SettingsError(f"{where}: expected a table")
    unknown = sorted(set(table) - set(_MEMBERS))
    if unknown:
        raise SettingsError(f"{where}: unknown member '{unknown[0]}', expected some of {', '.join(_MEMBERS)}")
    name, key = table.get("name"), table.get("key")
    if not isinstance(name, str) or not name or not isinstance(key, str):
        raise SettingsError(f"{where}: expected 'name' and 'key', both text")
    return Key(
        name=name,
        digest=_digest(key, where),
        models=_texts(table, "models", where) or ("*",),
        faces=_faces(table, where),
        max_concurrent_requests=_limit(table, "max_concurrent_requests", where),
        requests_per_minute=_limit(table, "requests_per_minute", where),
        tokens_per_minute=_limit(table, "tokens_per_minute", where),
        priority=_whole(table, "priority", where, -(2**31)) or 0,
    )


def _faces(table: Mapping[str, Any], where: str) -> frozenset[Face]:
    names = _texts(table, "faces", where)
    known = {face.value: face for face in Face}
    for name in names or ():
        if name not in known:
            raise SettingsError(f"{where}: faces: expected some of {', '.join(known)}, got '{name}'")
    return ORDINARY_FACES if names is None else frozenset(known[name] for name in names)


def _texts(table: Mapping[str, Any], name: str, where: str) -> tuple[str, ...] | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise SettingsError(f"{where}: {name}: expected a list of one or more texts")
    return tuple(value)


def _limit(table: Mapping[str, Any], name: str, where: str) -> int | None:
    return _whole(table, name, where, 1)


def _whole(table: Mapping[str, Any], name: str, where: str, low: int) -> int | None:
    value = table.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise SettingsError(f"{where}: {name}: expected a whole number of at least {low}")
    return value


def _digest(text: str, where: str) -> bytes:
    match = _DIGEST.fullmatch(text)
    if match:
        return bytes.fromhex(match.group(1))
    if text.startswith("sha256:"):
        raise SettingsError(f"{where}: expected 64 hexadecimal digits after sha256:")
    if not _VISIBLE.fullmatch(text):
        raise SettingsError(f"{where}: expected a key of visible ASCII characters without spaces")
    return digest_of(text)


def _check_different(keys: list[Key]) -> None:
    by_digest: dict[bytes, Key] = {}
    by_name: set[str] = set()
    for key in keys:
        if key.digest in by_digest:
            raise SettingsError(f"keys '{by_digest[key.digest].name}' and '{key.name}' are the same key")
        if key.name in by_name:
            raise SettingsError(f"two keys have the name '{key.name}'")
        by_digest[key.digest] = key
        by_name.add(key.name)
