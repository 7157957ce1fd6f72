"""Traces of requests in Triton's form: a JSON list in a file, two entries for each model that had part in a request."""

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
from backends.api.request import InferenceRequest, ModelRun
from gateway.kserve_controls import TraceControl, TraceSettings

log = logging.getLogger("tidegate.trace")


class Tracer:
    """Writes one request of `trace_rate` to the trace file, `trace_count` of them in all. Any thread may call.

    Both count the requests of all models together, but for those of a model with settings of its own. With a `log_frequency` of n the file is one of many: FILE.0 has the first n traces, FILE.1 the next.
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
        self._is_failing = False

    def ended(self, request: InferenceRequest, error: ServingError | None) -> None:
        """A request has had its end."""
        if not self._control.is_on or not request.times.queued:
            return
        owner, settings = self._control.for_request(request.model)
        with self._lock:
            if settings.trace_level == ("OFF",) or not self._is_chosen(owner, settings):
                return
            run = ModelRun(request.model, request.taken_by, request.times, request.steps)
            try:
                self._write(_entries(self._ids, run, request.id, time.monotonic()), settings)
                self._is_failing = False
            except OSError as failure:
                self._report(settings.trace_file, failure)

    def close(self) -> None:
        with self._lock:
            self._end_file()

    def _is_chosen(self, owner: str, settings: TraceSettings) -> bool:
        key, count = (owner, settings), int(settings.trace_count)
        turn = self._num_seen[key] % int(settings.trace_rate)
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

    def _report(self, file: str, failure: OSError) -> None:
        """Once, until traces can be written again."""
        if not self._is_failing:
            log.error("cannot write traces to '%s': %s", file, failure.strerror)
        self._is_failing = True

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.write(b"]\n")
            self._file.close()
            self._file, self._num_in_file = None, 0


def _entries(
    ids: Iterator[int], run: ModelRun, request_id: str, end: float, parent_id: int | None = None
) -> Iterator[dict[str, Any]]:
    """What a request's model did until `end` (seconds), then each step of an ensemble, which names its parent."""
    number = next(ids)
    version = int(run.version) if run.version.isdecimal() else -1  # refused before a model took it
    entry = {"id": number, "model_name": run.model, "model_version": version, "request_id": request_id}
    yield entry if parent_id is None else {**entry, "parent_id": parent_id}
    stamps = [{"name": name, "ns": round(seconds * 1e9)} for name, seconds in _moments(run, end) if seconds]
    yield {"id": number, "timestamps": stamps}
    for step in run.steps:
        yield from _entries(ids, step, request_id, step.times.compute_end or end, number)


def _moments(run: ModelRun, end: float) -> Iterator[tuple[str, float]]:
    times = run.times
    yield "REQUEST_START", times.received or times.queued
    yield "QUEUE_START", times.queued
    if not run.steps:  # an ensemble computes in its steps
        yield "COMPUTE_START", times.compute_start
        yield "COMPUTE_INPUT_END", times.compute_input_end
        yield "COMPUTE_OUTPUT_START", times.compute_output_start
        yield "COMPUTE_END", times.compute_end
    yield "REQUEST_END", end
