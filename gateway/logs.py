"""Log lines for people (text) and for machines (JSON).

One line a finished request, one a model's change of state, none a token, and no prompt text. A record is one line
whatever a request's text holds; what follows a text line, a traceback, is indented. Code logs with
the standard library and puts what a machine may want to filter by under `extra={"fields": {...}}`.
"""

import json
import logging
import sys
from datetime import UTC, datetime

import orjson

from gateway.kserve_controls import LogSettings
from gateway.settings import Settings, SettingsError

_LETTERS = {"DEBUG": "V", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "E"}


class LogOutput:
    """Where this process's log lines go, and which of them. What is written follows `apply` while the server runs."""

    def __init__(self, handler: logging.Handler, settings: LogSettings) -> None:
        self._handler = handler
        self._settings = settings
        handler.addFilter(self._is_wanted)
        self.apply(settings)

    def apply(self, settings: LogSettings) -> None:
        self._settings = settings
        formatters = {"default": TextFormatter("%m%d %H:%M:%S.%f"), "ISO8601": TextFormatter("%Y-%m-%dT%H:%M:%SZ")}
        self._handler.setFormatter(formatters.get(settings.log_format) or JsonFormatter())
        logging.getLogger("tidegate").setLevel(logging.DEBUG if settings.log_verbose_level else logging.INFO)

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        settings = self._settings
        wanted = {
            logging.INFO: settings.log_info,
            logging.WARNING: settings.log_warning,
            logging.ERROR: settings.log_error,
        }
        return wanted.get(record.levelno, True)


def log_settings(settings: Settings) -> LogSettings:
    return LogSettings(
        log_file=settings.log_file,
        log_info=settings.log_info,
        log_warning=settings.log_warning,
        log_error=settings.log_error,
        log_verbose_level=settings.log_verbose,
        log_format=settings.log_format,
    )


def set_up(settings: Settings) -> LogOutput:
    """Point the root logger at standard error or the log file, in the format and levels of `settings`.

    Raises SettingsError for a file that cannot be written.
    """
    handler = _handler(settings.log_file)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # a traceback for every message that is none, which anybody can send; its sender is told
    logging.getLogger("grpc._common").setLevel(logging.CRITICAL)
    return LogOutput(handler, log_settings(settings))


def _handler(path: str) -> logging.Handler:
    if not path:
        return logging.StreamHandler(sys.stderr)
    try:
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--log-file: cannot write '{path}': {error.strerror}") from None


class TextFormatter(logging.Formatter):
    """`I1201 01:12:00.770389 message key=value ...`, with times in UTC."""

    def __init__(self, date_format: str) -> None:
        super().__init__()
        self._date_format = date_format

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime(self._date_format)
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items())
        line = _printable(f"{_LETTERS.get(record.levelname, 'I')}{when} {record.getMessage()}{fields}")
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n  ".join([line, *map(_printable, trace)])


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def _printable(text: str) -> str:
    """`text` with everything escaped that could end its line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
