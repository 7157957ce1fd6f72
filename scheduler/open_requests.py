"""The requests an engine has taken and not yet ended, on its client's side: numbers, limits, delivery."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from backends.api.base import EngineLoad
from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, TokenEvent
from scheduler.engine_observer import EngineObserver
from scheduler.engine_options import EngineOptions
from scheduler.frames import EngineStats, StepFrame


@dataclass(slots=True)
class _Open:
    request: GenerateRequest
    is_queued: bool = True
    num_tokens: int = 0


class OpenRequests:
    """Owns the numbers of requests and what is known of each; used by one thread.

    A request leaves when it ends, by a frame, by `cancel` or with everything else by `fail_all`. Frames about a
    request that has left are ignored: they were under way.
    """

    def __init__(self, options: EngineOptions, observer: EngineObserver) -> None:
        self.options = options
        self._observer = observer
        self._open: dict[int, _Open] = {}
        self._last_number = 0
        self._num_queued = 0
        self._num_queued_tokens = 0
        self._on_empty: list[Callable[[], object]] = []
        self.stats = EngineStats()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def load(self) -> EngineLoad:
        stats = self.stats
        return EngineLoad(
            num_running=len(self._open) - self._num_queued,
            num_waiting=self._num_queued,
            num_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks,
        )

    def add(self, request: GenerateRequest) -> int:
        """Take in a checked request; its number. Raises ServingError(OVERLOADED) when the queue is full."""
        self._check_queue(len(request.prompt))
        self._last_number += 1
        self._open[self._last_number] = _Open(request)
        self._num_queued += 1
        self._num_queued_tokens += len(request.prompt)
        return self._last_number

    def cancel(self, number: int) -> bool:
        """The reader left, or has all it wants. False if the request had ended before."""
        entry = self._open.get(number)
        satisfied = entry is not None and entry.request.stream.satisfied
        end = FinishReason.STOP if satisfied else ServingError(Code.CANCELLED, "the client left")
        return self._leave(number, end) is not None

    def deliver(self, frame: StepFrame) -> None:
        """Put what a step brought on the streams."""
        self.stats = frame.stats
        for number, start in frame.scheduled:
            self._scheduled(number, start)
        for number, event in frame.events:
            self._put(number, event, frame.time)
        for number, failure in frame.failures:
            self._fail(number, failure.error())
        self._observer.step(frame)

    def fail_all(self, error: ServingError) -> None:
        """The engine is gone, and with it all it was working on."""
        self.stats = EngineStats()
        for number in list(self._open):
            self._fail(number, error)

    def when_empty(self, callback: Callable[[], object]) -> None:
        """Call once no request is open, at once if none is."""
        if self._open:
            self._on_empty.append(callback)
        else:
            callback()

    def _check_queue(self, num_tokens: int) -> None:
        """The bounds count what cannot start at once: as many as there are rows left are no queue yet."""
        options = self.options
        if len(self._open) >= options.max_num_open_reqs:
            raise self._overloaded(f"{self._num_queued} requests are waiting already")
        if self._num_queued and self._num_queued_tokens + num_tokens > options.max_num_queued_tokens:
            raise self._overloaded(
                f"requests of {self._num_queued_tokens} prompt tokens are waiting already, this one has {num_tokens}, "
                f"and the limit is {options.max_num_queued_tokens}"
            )

    def _overloaded(self, why: str) -> ServingError:
        wait = self._num_queued_tokens * self.stats.seconds_per_token
        return ServingError(
            Code.OVERLOADED,
            f"the model's queue is full: {why}. Please retry later.",
            reason="queue_full",
            retry_after=max(1, ceil(wait)),
        )

    def _scheduled(self, number: int, start: float) -> None:
        entry = self._open.get(number)
        if entry is not None:
            entry.request.times.scheduled = start
            self._dequeue(entry)

    def _dequeue(self, entry: _Open) -> None:
        if entry.is_queued:
            entry.is_queued = False
            self._num_queued -= 1
            self._num_queued_tokens -= len(entry.request.prompt)

    def _put(self, number: int, event: TokenEvent, time: float) -> None:
        entry = self._open.get(number)
        if entry is None:
            return
        request, times, count = entry.request, entry.request.times, len(event.tokens)
        gap = time - times.last_token if entry.num_tokens else None
        times.first_token = times.first_token or time
        times.last_token = time
        entry.num_tokens += count
        if count:
            self._observer.tokens(request, count, gap)
        if event.finish is None:
            request.stream.put(event)
        else:
            self._leave(number, event.finish)
            request.stream.finish(event)

    def _fail(self, number: int, error: ServingError) -> None:
        request = self._leave(number, error)
        if request is not None:
            request.stream.fail(error)

    def _leave(self, number: int, end: FinishReason | ServingError) -> GenerateRequest | None:
        entry = self._open.pop(number, None)
        if entry is None:
            return None
        self._dequeue(entry)
        self._observer.ended(entry.request, entry.num_tokens, end)
        if not self._open:
            callbacks, self._on_empty = self._on_empty, []
            for callback in callbacks:
                callback()
        return entry.request
