"""What a user can set or call is documented."""

import dataclasses
import re
from pathlib import Path

from gateway.flags import ENVIRONMENT_PREFIX, parser
from gateway.settings import Settings

ROOT = Path(__file__).parent.parent
ROWS = re.findall(r"^\| `([^`]+)`(.*?) \|", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)


def test_the_table_of_settings_has_every_flag_and_what_the_environment_alone_gives() -> None:
    flags = {flag for action in parser()._actions for flag in action.option_strings}
    for setting in dataclasses.fields(Settings):
        flag = f"--{setting.name.replace('_', '-')}"
        if flag in flags:
            assert (flag, "") in ROWS
        else:
            assert (ENVIRONMENT_PREFIX + setting.name.upper(), " (environment only)") in ROWS


def test_the_table_of_settings_has_nothing_that_is_none() -> None:
    names = {setting.name for setting in dataclasses.fields(Settings)}
    assert {
        name.removeprefix("--").removeprefix(ENVIRONMENT_PREFIX).replace("-", "_").lower() for name, _ in ROWS
    } <= names
