"""Traces of requests in Triton's form: a JSON list in a file, two entries a request."""

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from backends.api.errors import ServingError
from backends.api.request import InferenceRequest
from gateway.kserve_controls import TraceControl, TraceSettings

log = logging.getLogger("tidegate.trace")


class Tracer:
    """Writes one request of `trace_rate` to the trace file, `trace_count` of them in all. Any thread may call.

    With a `log_frequency` of n the file is one of many: FILE.0 has the first n traces, FILE.1 the next.
    """

    def __init__(self, control: TraceControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._num_seen: Counter[tuple[str, TraceSettings]] = Counter()  # anew when the settings change
        self._num_traced: Counter[tuple[str, TraceSettings]] = Counter()
        self._file: BinaryIO | None = None
        self._num_in_file = 0
        self._num_files = 0

    def ended(self, request: InferenceRequest, error: ServingError | None) -> None:
        """A request has had its end."""
        if not self._control.is_on or not request.times.queued:
            return
        settings = self._control.get(request.model)
        with self._lock:
            if settings.trace_level == ("OFF",) or not self._is_chosen(request.model, settings):
                return
            try:
                self._write(_entries(next(self._ids), request), settings)
            except OSError as failure:
                log.error("cannot write traces to '%s': %s", settings.trace_file, failure.strerror)

    def close(self) -> None:
        with self._lock:
            self._end_file()

    def _is_chosen(self, model: str, settings: TraceSettings) -> bool:
        key, count = (model, settings), int(settings.trace_count)
        turn = self._num_seen[key] % max(1, int(settings.trace_rate))
        self._num_seen[key] += 1
        if turn or 0 <= count <= self._num_traced[key]:
            return False
        self._num_traced[key] += 1
        return True

    def _write(self, entries: Iterator[dict[str, Any]], settings: TraceSettings) -> None:
        frequency = int(settings.log_frequency)
        if frequency and self._num_in_file >= frequency:
            self._end_file()
        if self._file is None:
            path = f"{settings.trace_file}.{self._num_files}" if frequency else settings.trace_file
            self._file = Path(path).open("wb")  # noqa: SIM115 - closed with the server
            self._num_files += 1
        for entry in entries:
            self._file.write((b"[" if not self._file.tell() else b",\n") + orjson.dumps(entry))
        self._num_in_file += 1
        self._file.flush()

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.write(b"]\n")
            self._file.close()
            self._file, self._num_in_file = None, 0


def _entries(number: int, request: InferenceRequest) -> Iterator[dict[str, Any]]:
    version = int(request.version) if request.version.isdecimal() else -1
    yield {"id": number, "model_name": request.model, "model_version": version, "request_id": request.id}
    times = request.times
    moments = (
        ("REQUEST_START", times.received or times.queued),
        ("QUEUE_START", times.queued),
        ("COMPUTE_START", times.compute_start),
        ("COMPUTE_INPUT_END", times.compute_input_end),
        ("COMPUTE_OUTPUT_START", times.compute_output_start),
        ("COMPUTE_END", times.compute_end),
        ("REQUEST_END", time.monotonic()),
    )
    stamps = [{"name": name, "ns": round(seconds * 1e9)} for name, seconds in moments if seconds]
    yield {"id": number, "timestamps": stamps}
