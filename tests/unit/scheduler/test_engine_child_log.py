"""What an engine process prints, in the parent's log."""

import logging

import pytest

from scheduler.engine_child import _log_line


def test_a_childs_lines_keep_their_level_and_anything_else_is_told_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for line in ("ERROR scheduler.engine: a step failed", "Traceback (most recent call last):", "WARNING x: y"):
        _log_line("m", line)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "engine of 'm': scheduler.engine: a step failed"),
        ("INFO", "engine of 'm': Traceback (most recent call last):"),
        ("WARNING", "engine of 'm': x: y"),
    ]
