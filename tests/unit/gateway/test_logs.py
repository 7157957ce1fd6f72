"""Log lines."""

import io
import logging
import sys

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.kserve_controls import LogSettings
from gateway.logs import JsonFormatter, LogOutput, TextFormatter


def record(**fields: object) -> logging.LogRecord:
    made = logging.LogRecord("tidegate.request", logging.INFO, "file.py", 1, "chat finished", None, None)
    made.created = 0.0
    made.fields = fields
    return made


def test_text_shows_the_message_then_its_fields() -> None:
    line = TextFormatter("%Y-%m-%dT%H:%M:%SZ").format(record(model="m", seconds=0.123456, reason="two words"))
    assert line == 'I1970-01-01T00:00:00Z chat finished model=m seconds=0.1235 reason="two words"'


@given(st.text(), st.text(alphabet=st.characters()))
def test_a_record_is_one_line_of_text_whatever_a_request_says(text: str, value: str) -> None:
    made = record(model=value)
    made.msg, made.args = "model %s", (text + "\nE1201 forged \x1b[31m\x00\u2028",)
    line = TextFormatter("%H").format(made)
    assert line.isprintable()
    assert line.startswith("I00 model ")


def test_no_line_of_a_traceback_looks_like_a_line_of_the_log() -> None:
    made = record()
    try:
        raise ValueError("bad\nE1201 forged\x1b[31m")
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *rest = TextFormatter("%H").format(made).splitlines()
    assert first == "I00 chat finished"
    assert len(rest) > 2
    assert all(line.startswith("  ") and line.isprintable() for line in rest)


def test_json_is_one_object_a_line() -> None:
    line = JsonFormatter().format(record(model="a\nb"))
    assert "\n" not in line
    entry = orjson.loads(line)
    assert (entry["level"], entry["message"], entry["model"]) == ("info", "chat finished", "a\nb")


def test_what_is_logged_can_change_while_the_server_runs() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    output = LogOutput(handler, LogSettings())
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(handler)
    logger.info("one")
    output.apply(LogSettings(log_info=False, log_format="json"))
    logger.info("two")
    logger.warning("three")
    first, second = stream.getvalue().splitlines()
    assert first.endswith(" one")
    assert orjson.loads(second)["message"] == "three"
