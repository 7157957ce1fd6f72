"""Keys: how they are written, and whom they let in."""

import hashlib
from pathlib import Path

import pytest

from backends.api.errors import Code, ServingError
from gateway.flags import from_arguments, parser
from gateway.key_file import key_ring
from gateway.keys import EVERY_FACE, ORDINARY_FACES, Face, Key, KeyRing, digest_of
from gateway.settings import Settings, SettingsError

TOML = """
[[keys]]
name = "alice"
key = "sha256:{digest}"
models = ["chat", "llama-*"]
faces = ["openai", "admin"]
max_concurrent_requests = 2
requests_per_minute = 60
tokens_per_minute = 1000
priority = -1

[[keys]]
name = "bob"
key = "sk-bob"
"""


def ring_of(path: Path, text: str) -> list[Key]:
    path.write_text(text)
    return list(key_ring(Settings(api_key_file=str(path))))


def test_a_toml_file_gives_rights_and_limits(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-alice")
    alice, bob = ring_of(tmp_path / "keys.toml", TOML.format(digest=digest.hexdigest()))
    assert alice == Key(
        name="alice",
        digest=digest.digest(),
        models=("chat", "llama-*"),
        faces=frozenset({Face.OPENAI, Face.ADMIN}),
        max_concurrent_requests=2,
        requests_per_minute=60,
        tokens_per_minute=1000,
        priority=-1,
    )
    assert bob == Key(name="bob", digest=digest_of("sk-bob"), faces=ORDINARY_FACES)


def test_a_plain_file_has_a_key_a_line_with_or_without_a_name(tmp_path: Path) -> None:
    keys = ring_of(tmp_path / "keys", "# ours\nsk-one\n\n  ops sk-two\n")
    assert [(key.name, key.digest) for key in keys] == [("line-2", digest_of("sk-one")), ("ops", digest_of("sk-two"))]
    assert all(key.faces == ORDINARY_FACES and key.may_use_all for key in keys)


def test_keys_of_the_environment_are_ordinary_or_admins_and_never_flags() -> None:
    settings = from_arguments([], {"TIDEGATE_API_KEYS": "sk-a,sk-b", "TIDEGATE_ADMIN_API_KEYS": "sk-c"})
    assert [key.faces for key in key_ring(settings)] == [ORDINARY_FACES, ORDINARY_FACES, EVERY_FACE]
    assert "sk-a" not in repr(settings)
    assert "api-keys" not in parser().format_help()


def test_without_keys_the_ring_is_empty() -> None:
    assert len(key_ring(Settings())) == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("k", "a b secret", "expected KEY or NAME KEY"),
        ("k", "sha256:12", "64 hexadecimal digits"),
        ("k", "# nothing", "has no keys"),
        ("k", "one secret\ntwo secret", "are the same key"),
        ("k", "one secret\none other", "two keys have the name 'one'"),
        ("k.toml", "secret = ", "not valid TOML"),
        ("k.toml", "keys = 3", r"expected \[\[keys\]\] tables"),
        ("k.toml", "[[keys]]\nname = 'a'", "expected 'name' and 'key'"),
        ("k.toml", "[[keys]]\nname = 'a'\nkey = 'secret'\nmodel = 'x'", "unknown member 'model'"),
        ("k.toml", "[[keys]]\nname = 'a'\nkey = 'secret'\nfaces = ['all']", "got 'all'"),
        ("k.toml", "[[keys]]\nname = 'a'\nkey = 'secret'\nmodels = []", "one or more texts"),
        ("k.toml", "[[keys]]\nname = 'a'\nkey = 'secret'\nrequests_per_minute = 0", "whole number of at least 1"),
    ],
)
def test_a_file_that_is_wrong_is_refused_without_telling_its_keys(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        ring_of(tmp_path / name, text)
    assert "secret" not in str(caught.value)


def test_an_empty_variable_does_not_open_the_server() -> None:
    with pytest.raises(SettingsError, match="TIDEGATE_API_KEYS"):
        key_ring(from_arguments([], {"TIDEGATE_API_KEYS": ""}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read .*absent: No such file"):
        key_ring(Settings(api_key_file=str(tmp_path / "absent")))


RING = KeyRing([Key(name="one", digest=digest_of("sk-1")), Key(name="two", digest=digest_of("sk-2"))])


@pytest.mark.parametrize("header", ["Bearer sk-2", "bearer sk-2", "Bearer  sk-2 "])
def test_a_bearer_token_finds_its_key(header: str) -> None:
    assert RING.find(header).name == "two"


@pytest.mark.parametrize(
    "header", ["", "sk-2", "Basic sk-2", "Bearer", "Bearer ", "Bearer sk-22", "Bearer SK-2", "Bearer é"]
)
def test_anything_else_is_unauthenticated_and_not_quoted(header: str) -> None:
    with pytest.raises(ServingError) as caught:
        RING.find(header)
    assert caught.value.code is Code.UNAUTHENTICATED
    assert "sk-2" not in caught.value.message


def test_salts_of_keys_differ_and_hide_the_digest() -> None:
    one, two = RING
    assert one.cache_salt != two.cache_salt
    assert one.cache_salt not in one.digest.hex()
