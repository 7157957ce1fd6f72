"""The log line of a finished KServe request."""

import logging
import time

from backends.api.errors import Code, ServingError
from backends.api.request import InferenceRequest

_LOG = logging.getLogger("tidegate.request")


def log_end(request: InferenceRequest, error: ServingError | None) -> None:
    """One line: what was asked of whom, how long it took, how it ended.

    An answer is a line only with `--log-verbose` 1 and more: at ten thousand small requests a second the lines would
    cost more than the answers. What failed is always told.
    """
    level = logging.DEBUG if error is None or error.code is Code.CANCELLED else logging.INFO
    if not _LOG.isEnabledFor(level):
        return
    times = request.times
    fields: dict[str, object] = {
        "request": request.id,
        "model": request.model,
        "version": request.taken_by or request.version,
    }
    if times.compute_start:
        fields["queue_s"] = times.compute_start - times.queued
        fields["compute_s"] = times.compute_end - times.compute_start
    fields["took_s"] = time.monotonic() - (times.received or times.queued or time.monotonic())
    fields["end"] = "ok" if error is None else error.reason or error.code.value
    _LOG.log(level, "inferred", extra={"fields": {key: value for key, value in fields.items() if value != ""}})
