"""Which waiting requests form the next batch: Triton's forming rule as a pure function.

Requests wait in one first-in-first-out queue per priority level. The walk goes from the highest level
down and from the oldest on, and never overtakes: what does not fit ends the batch.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import inf

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig, QueuePolicy, TimeoutAction
from backends.api.request import InferenceRequest
from scheduler.deadlines import Deadlines

QUEUE_FULL = "Exceeds maximum queue size"
TIMED_OUT = "Request timeout expired"


@dataclass(slots=True, eq=False)
class Waiting:
    """A request on its way through a scheduler. Requests of unequal `key` never share a batch.

    `timeout` is when its queue policy gives it up, `deadline` when its caller does; inf is never. `again`: it has run and
    is to run once more. `num_responses` counts those of a decoupled model so far.
    """

    request: InferenceRequest
    rows: int = 1
    key: Hashable = None
    level: int = 1
    queued: float = 0.0
    timeout: float = inf
    deadline: float = inf
    cache_key: bytes | None = None
    cache_lookup: float = 0.0  # seconds
    again: bool = False
    num_responses: int = 0


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How batches are formed. `max_rows` 0: requests are never joined. `max_delay` is in seconds."""

    max_rows: int = 0
    preferred: frozenset[int] = frozenset()
    max_delay: float = 0.0
    preserve_ordering: bool = False
    default_level: int = 1
    levels: tuple[QueuePolicy, ...] = (QueuePolicy(allow_timeout_override=True),)

    @classmethod
    def of(cls, config: ModelConfig) -> "BatchPolicy":
        batching = config.dynamic_batching
        if batching is None:
            return cls()
        num_levels = max(1, batching.priority_levels)
        levels = (
            batching.priority_queue_policy.get(level, batching.default_queue_policy)
            for level in range(1, num_levels + 1)
        )
        preferred = batching.preferred_batch_size or (config.max_batch_size,)
        return cls(
            max_rows=config.max_batch_size,
            preferred=frozenset(size for size in preferred if size > 0),
            max_delay=batching.max_queue_delay_microseconds / 1e6,
            preserve_ordering=batching.preserve_ordering,
            default_level=max(1, batching.default_priority_level),
            levels=tuple(levels),
        )

    @property
    def runs_ahead(self) -> bool:
        """Whether a request may leave the queue before a thread is free for it: nobody counts on it being there."""
        (first, *others) = self.levels
        limited = others or first.max_queue_size or first.default_timeout_microseconds
        return not (self.max_rows or limited)

    def level_of(self, priority: int) -> int:
        """The level for a request's `priority`; 0 and numbers past the last level get the default."""
        return priority if 1 <= priority <= len(self.levels) else self.default_level

    def timeout_of(self, level: int, requested_us: int) -> float:
        """Seconds a request may wait, inf without limit.

        A request may shorten its level's time where the level allows it. Where the level sets none there is nothing
        to override, and the request's own holds.
        """
        policy = self.levels[level - 1]
        default = policy.default_timeout_microseconds
        if requested_us > 0 and (default == 0 or (policy.allow_timeout_override and requested_us < default)):
            return requested_us / 1e6
        return default / 1e6 if default else inf


class _Level:
    """One priority: `fresh` in order of arrival, then `late`, which timed out under DELAY."""

    __slots__ = ("fresh", "late", "policy")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.fresh: OrderedDict[Waiting, None] = OrderedDict()
        self.late: OrderedDict[Waiting, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.late)


class BatchQueue:
    """The requests that wait for one model. Not thread-safe: its scheduler locks."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.num_rows = 0
        self.last_key: Hashable = None
        self._num = 0
        self._levels = tuple(_Level(level) for level in policy.levels)
        self._deadlines: Deadlines[Waiting] = Deadlines()

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Waiting]:
        """In the order in which they are to run."""
        for level in self._levels:
            yield from level.fresh
            yield from level.late

    @property
    def next_deadline(self) -> float:
        """When the next request is to be refused or delayed if it still waits; inf for never."""
        return self._deadlines.next

    def is_full(self, level: int) -> bool:
        entries = self._levels[level - 1]
        limit = entries.policy.max_queue_size
        return 0 < limit <= len(entries)

    def add(self, waiting: Waiting) -> None:
        self._levels[waiting.level - 1].fresh[waiting] = None
        self._num += 1
        self.num_rows += waiting.rows
        self.last_key = waiting.key
        due = min(waiting.timeout, waiting.deadline)
        if due != inf:
            self._deadlines.add(due, waiting)

    def remove(self, waiting: Waiting) -> bool:
        """Take it out; whether it was there."""
        level = self._levels[waiting.level - 1]
        if waiting in level.fresh:
            del level.fresh[waiting]
        elif waiting in level.late:
            del level.late[waiting]
        else:
            return False
        self._num -= 1
        self.num_rows -= waiting.rows
        self._deadlines.discard(waiting)
        return True

    def expire(self, now: float) -> list[Waiting]:
        """Take out those whose time has come; under DELAY they move behind their level instead."""
        refused = []
        for waiting in self._deadlines.pop_due(now):
            level = self._levels[waiting.level - 1]
            if waiting.deadline > now and level.policy.timeout_action is TimeoutAction.DELAY:
                del level.fresh[waiting]
                level.late[waiting] = None
                waiting.timeout = inf
                if waiting.deadline != inf:
                    self._deadlines.add(waiting.deadline, waiting)
            else:
                self.remove(waiting)
                refused.append(waiting)
        return refused


def next_batch(
    queue: BatchQueue, policy: BatchPolicy, now: float, *, busy: bool = False
) -> tuple[list[Waiting], list[Waiting], float]:
    """The batch to run now, those whose time is over, and how long to wait when there is no batch.

    The largest preferred size that the walk reaches is sent at once. Without one, all that can run together is
    sent when it cannot grow, has passed the largest preferred size, or its oldest request has waited `max_delay`.
    A request that is alone while no instance is `busy` is sent at once: there is nobody to wait for.
    The wait is inf for an empty queue and does not look at deadlines, which have a timer of their own.
    """
    refused = queue.expire(now) if queue.next_deadline <= now else []
    batch: list[Waiting] = []
    rows = best = 0
    must_go = policy.max_delay == 0 or (not busy and len(queue) == 1)
    for waiting in queue:
        if batch and (rows + waiting.rows > policy.max_rows or waiting.key != batch[0].key):
            must_go = True
            break
        batch.append(waiting)
        rows += waiting.rows
        if rows in policy.preferred:
            best = len(batch)
    if not batch:
        return batch, refused, inf
    if best:
        del batch[best:]
    elif not must_go and rows < max(policy.preferred, default=0):
        rest = min(waiting.queued for waiting in batch) + policy.max_delay - now
        if rest > 0:
            return [], refused, rest
    for waiting in batch:
        queue.remove(waiting)
    return batch, refused, 0.0


def refusal(waiting: Waiting, now: float) -> ServingError:
    """Why `next_batch` refused it."""
    if waiting.deadline <= now:
        return ServingError(
            Code.DEADLINE,
            f"{waiting.request.label} the deadline passed while the request waited for model '{waiting.request.model}'",
            reason="deadline",
        )
    return ServingError(Code.UNAVAILABLE, TIMED_OUT, reason="timeout")
