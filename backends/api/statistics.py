"""What a model has done since it was loaded: the statistics extension and the counters of /metrics.

The scheduler that runs the model writes, every front reads a `snapshot`; both tell the same story.
Each accepted or refused request is counted once, as a success, a failure with its reason, or a cancel.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from backends.api.request import Times


class Failure(Enum):
    """Why a request failed: the `reason` label of nv_inference_request_failure."""

    REJECTED = "REJECTED"  # refused by a queue: full, timed out, closing
    CANCELED = "CANCELED"  # the caller left
    BACKEND = "BACKEND"  # the model failed
    OTHER = "OTHER"  # found wrong before it reached the model


@dataclass(slots=True)
class Duration:
    """How many times something happened and how long that took in all."""

    count: int = 0
    seconds: float = 0.0

    @property
    def ns(self) -> int:
        return round(self.seconds * 1e9)

    def add(self, seconds: float, count: int = 1) -> None:
        """`seconds` is the sum over all `count`."""
        self.count += count
        self.seconds += seconds


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size; each count is one execution."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ResponseStatistics:
    """The n-th answers of a decoupled model's requests."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


# Upper ends of the published latency histograms, in seconds
LATENCY_BOUNDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# What is kept is finer, so that quantiles can be read off within 3 %: 40 steps a decade from 10 µs to 1,000 s
FINE_BOUNDS = tuple(
    sorted({*LATENCY_BOUNDS, 1e-5, 100.0, 1000.0, *(10.0 ** (step / 40 - 5) for step in range(320) if step % 40)})
)
FIRST_RESPONSE_BOUNDS = (0.1, 0.5, 2.0, 5.0)


@dataclass(slots=True)
class Latencies:
    """How often something took how long: `counts[i]` up to `bounds[i]` seconds, the last beyond all of them."""

    bounds: tuple[float, ...] = FINE_BOUNDS
    counts: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` times `seconds` each."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.seconds += seconds * count

    def __deepcopy__(self, memo: dict[int, Any]) -> "Latencies":
        """A snapshot is taken under the lock of those who count: no look at each number."""
        return Latencies(self.bounds, self.counts.copy(), self.seconds)


@dataclass(slots=True)
class Counts:
    """The numbers themselves, named as in the protocol's `model_stats`.

    `inference_count` is the rows of all executions and `execution_count` the executions, so both
    equal the sums over `batch_stats`; answers from the cache are in neither. Times of a request that
    shared a batch are those of the whole batch. `last_inference` is wall-clock milliseconds.
    """

    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    batch_stats: dict[int, BatchStatistics] = field(default_factory=dict)
    response_stats: dict[int, ResponseStatistics] = field(default_factory=dict)
    request_latencies: Latencies = field(default_factory=Latencies)
    queue_latencies: Latencies = field(default_factory=Latencies)
    compute_input_latencies: Latencies = field(default_factory=Latencies)
    compute_infer_latencies: Latencies = field(default_factory=Latencies)
    compute_output_latencies: Latencies = field(default_factory=Latencies)
    cache_hit_latencies: Latencies = field(default_factory=Latencies)
    cache_miss_latencies: Latencies = field(default_factory=Latencies)
    first_responses: Latencies = field(default_factory=Latencies)  # of decoupled models
    failures: dict[Failure, int] = field(default_factory=lambda: dict.fromkeys(Failure, 0))


class ModelStatistics:
    """The counts of one model version. Any thread may write or read; a reader never sees half an update."""

    def __init__(self, first_response_bounds: Sequence[float] = ()) -> None:
        """Bounds in seconds, growing; none for the usual ones."""
        self._lock = threading.Lock()
        self._counts = Counts(first_responses=Latencies(tuple(first_response_bounds) or FIRST_RESPONSE_BOUNDS))

    def snapshot(self) -> Counts:
        """A copy that stays as it is."""
        with self._lock:
            return deepcopy(self._counts)

    def executed(self, rows: int, times: Times) -> None:
        """The model ran once, on `rows` rows (1 for a model without batching)."""
        with self._lock:
            counts = self._counts
            counts.last_inference = round(time.time() * 1000)
            counts.execution_count += 1
            batch = counts.batch_stats.get(rows)
            if batch is None:
                batch = counts.batch_stats[rows] = BatchStatistics()
            batch.compute_input.add(times.compute_input_end - times.compute_start)
            batch.compute_infer.add(times.compute_output_start - times.compute_input_end)
            batch.compute_output.add(times.compute_end - times.compute_output_start)

    def succeeded(self, requests: Sequence[Times], rows: int) -> None:
        """These requests of one execution, of `rows` rows together, got their answers."""
        if not requests:
            return
        total = 0.0
        with self._lock:
            for times in requests:
                whole = times.compute_end - (times.received or times.queued)
                total += whole
                self._counts.request_latencies.add(whole)
            self._counts.success.add(total, len(requests))
            self._counts.inference_count += rows
            self._computed(requests)

    def failed(self, reason: Failure, seconds: float = 0.0, executed: Times | None = None) -> None:
        """One request ended without an answer, `seconds` after it came in; `executed` if a model ran it all the same."""
        with self._lock:
            self._counts.fail.add(seconds)
            self._counts.failures[reason] += 1
            if executed is not None:
                self._computed([executed])

    def hit(self, times: Times, lookup: float) -> None:
        """A request was answered from the response cache, whose look-up took `lookup` seconds."""
        with self._lock:
            counts = self._counts
            counts.last_inference = round(time.time() * 1000)
            counts.cache_hit.add(lookup)
            counts.cache_hit_latencies.add(lookup)
            counts.queue.add(0.0)
            whole = times.compute_end - (times.received or times.queued)
            counts.success.add(whole)
            counts.request_latencies.add(whole)
            counts.queue_latencies.add(0.0)

    def missed(self, seconds: float) -> None:
        """The cache did not have an answer; `seconds` is the look-up and the later insertion."""
        with self._lock:
            self._counts.cache_miss.add(seconds)
            self._counts.cache_miss_latencies.add(seconds)

    def responded(
        self, index: int, outcome: str, *, infer: float = 0.0, output: float = 0.0, since_arrival: float = 0.0
    ) -> None:
        """A decoupled model gave answer number `index` (0 the first) of a request.

        `outcome` is "success", "fail", "empty_response" or "cancel"; `infer` and `output` are its seconds.
        """
        with self._lock:
            response = self._counts.response_stats.setdefault(index, ResponseStatistics())
            ending: Duration = getattr(response, outcome)
            ending.add(infer + output)
            if outcome in ("success", "fail"):
                response.compute_infer.add(infer)
                response.compute_output.add(output)
            if index == 0:
                self._counts.first_responses.add(since_arrival)

    def _computed(self, requests: Sequence[Times]) -> None:
        """These requests of one execution waited for it and had part in it."""
        counts, count = self._counts, len(requests)
        first = requests[0]  # what follows the queue is the same for all
        queued = 0.0
        for times in requests:
            waited = first.compute_start - times.queued
            queued += waited
            counts.queue_latencies.add(waited)
        compute_input = first.compute_input_end - first.compute_start
        compute_infer = first.compute_output_start - first.compute_input_end
        compute_output = first.compute_end - first.compute_output_start
        counts.queue.add(queued, count)
        counts.compute_input.add(count * compute_input, count)
        counts.compute_infer.add(count * compute_infer, count)
        counts.compute_output.add(count * compute_output, count)
        counts.compute_input_latencies.add(compute_input, count)
        counts.compute_infer_latencies.add(compute_infer, count)
        counts.compute_output_latencies.add(compute_output, count)
