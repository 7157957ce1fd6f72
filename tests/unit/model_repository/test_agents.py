"""The checksum agent."""

from hashlib import md5
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from model_repository.candidate import from_folder
from model_repository.options import RepositoryOptions

OPTIONS = RepositoryOptions(paths=())
GOOD = md5(b"weights", usedforsecurity=False).hexdigest()


def agents(name: str, **parameters: str) -> str:
    lines = "".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    return f'model_repository_agents {{ agents {{ name: "{name}" {lines} }} }}'


@pytest.mark.parametrize("expected", [GOOD, GOOD.upper()])
def test_files_with_the_right_sum_load(write_model: Any, expected: str) -> None:
    folder = write_model("m", agents("checksum", **{"MD5:1/model": expected}))
    (folder / "1" / "model").write_bytes(b"weights")
    assert from_folder(folder, OPTIONS).config.repository_agents


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (agents("checksum", **{"MD5:1/model": "0"}), Code.INVALID, f"Mismatched MD5 hash .* expect: 0, got: {GOOD}"),
        (agents("checksum", **{"MD5:1/absent": "0"}), Code.INVALID, "'1/absent' cannot be read: No such file"),
        (agents("checksum", **{"MD5:../x": "0"}), Code.INVALID, "must not contain path traversal characters"),
        (agents("checksum", **{"SHA:1/model": "0"}), Code.INVALID, "unsupported checksum 'SHA:1/model'"),
        (agents("decrypt"), Code.INVALID, "unknown repository agent 'decrypt' for m, this server has: checksum"),
    ],
)
def test_a_file_that_is_another_fails_the_load(write_model: Any, text: str, code: Code, reason: str) -> None:
    folder = write_model("m", text)
    (folder / "1" / "model").write_bytes(b"weights")
    with pytest.raises(ServingError, match=reason) as failed:
        from_folder(folder, OPTIONS)
    assert failed.value.code is code
