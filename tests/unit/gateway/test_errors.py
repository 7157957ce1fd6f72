"""What a caller is told of an error."""

import re

import pytest

from backends.api.errors import Code, ServingError
from gateway.errors import as_serving_error


def test_a_bug_is_told_as_an_id_and_its_text_is_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    told = as_serving_error(OSError(36, "File name too long", "/home/models/secret"))
    assert told.code is Code.INTERNAL
    match = re.fullmatch(r"an internal error occurred \(request id ([0-9a-f]{32})\)", told.message)
    assert match is not None
    assert match[1] in caplog.text
    assert "/home/models/secret" in caplog.text


def test_an_error_that_is_fit_to_show_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    error = ServingError(Code.NOT_FOUND, "no such model")
    assert as_serving_error(error) is error
    assert not caplog.text
