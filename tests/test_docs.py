"""What a user can set or call is documented."""

import dataclasses
from pathlib import Path

import pytest

from gateway.settings import Settings

ROOT = Path(__file__).parent.parent
DOCS = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])


@pytest.mark.parametrize("name", [setting.name for setting in dataclasses.fields(Settings)])
def test_every_flag_is_in_the_documentation(name: str) -> None:
    assert f"`--{name.replace('_', '-')}`" in DOCS
