"""The log line of a finished KServe request."""

import logging

import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest, Times
from gateway.request_log import log_end


def request() -> InferenceRequest:
    times = Times(received=1.0, queued=1.0, compute_start=1.5, compute_end=2.0)
    return InferenceRequest(model="m", version="", inputs=[], id="r7", times=times)


def test_a_failure_is_one_line_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidegate.request"):
        log_end(request(), ServingError(Code.OVERLOADED, "full", reason="queue_full"))
    (record,) = caplog.records
    fields = record.__dict__["fields"]
    assert (fields["request"], fields["model"], fields["end"]) == ("r7", "m", "queue_full")
    assert (fields["queue_s"], fields["compute_s"]) == (0.5, 0.5)
    assert "version" not in fields


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 0), (logging.DEBUG, 1)])
def test_an_answer_is_a_line_for_those_who_ask_for_details(
    caplog: pytest.LogCaptureFixture, level: int, lines: int
) -> None:
    with caplog.at_level(level, "tidegate.request"):
        log_end(request(), None)
    assert len(caplog.records) == lines
