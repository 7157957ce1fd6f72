"""How many sequences a lane holds, and which of them run next. Pure: no clock, no lock, no thread."""

from collections import deque
from dataclasses import dataclass, field, replace

from backends.api.model_config import DirectStrategy, ModelConfig
from scheduler.batch import BatchPolicy, BatchQueue, Waiting, next_batch

SequenceId = int | str


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """`batching` is how the oldest strategy joins requests, None for the direct one. Times in seconds.

    `iterative`: a request is a sequence of its own, which lasts for as long as its model asks for it again.
    """

    model: str
    num_slots: int
    idle: float
    max_delay: float
    min_utilization: float = 0.0
    batching: BatchPolicy | None = None
    iterative: bool = False

    @classmethod
    def of(cls, config: ModelConfig) -> "SequencePolicy":
        sequence = config.sequence_batching
        assert sequence is not None
        strategy = sequence.strategy
        idle, delay = sequence.max_sequence_idle_microseconds / 1e6, strategy.max_queue_delay_microseconds / 1e6
        rows = max(1, config.max_batch_size)
        if isinstance(strategy, DirectStrategy):
            return cls(
                config.name, rows, idle, delay, strategy.minimum_slot_utilization, iterative=sequence.iterative_sequence
            )
        batching = BatchPolicy(
            max_rows=config.max_batch_size,
            preferred=frozenset(strategy.preferred_batch_size or (rows,)),
            max_delay=delay,
        )
        num_slots = strategy.max_candidate_sequences or rows
        return cls(config.name, num_slots, idle, delay, batching=batching, iterative=sequence.iterative_sequence)


@dataclass(slots=True, eq=False)
class Box:
    """`is_open`: the life that was queued last goes on, so that a request without START may follow.

    `is_over`: the life in the slot ends with the request that is running.
    """

    id: SequenceId
    queue: deque[Waiting] = field(default_factory=deque)
    lane: "Lane | None" = None
    slot: int = 0
    running: Waiting | None = None
    is_open: bool = False
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Lane:
    """`is_leaving`: it takes no new sequence, and goes when those it has are over."""

    number: int
    slots: list[Box | None]
    is_leaving: bool = False

    @property
    def num_free(self) -> int:
        return 0 if self.is_leaving else self.slots.count(None)

    @property
    def is_empty(self) -> bool:
        return not any(self.slots)

    @property
    def has_business(self) -> bool:
        """Whether its thread has something to do."""
        return bool(self.ready) or (self.is_leaving and self.is_empty)

    @property
    def ready(self) -> list[Box]:
        """Boxes whose next request may run, by slot."""
        return [box for box in self.slots if box is not None and box.queue and box.running is None]


def next_boxes(ready: list[Box], policy: SequencePolicy, now: float, *, is_draining: bool) -> tuple[list[Box], float]:
    """Whose requests run now, of the boxes of one lane that could (by slot); else how long to wait."""
    if policy.batching is None:
        oldest = min(ready, key=lambda box: box.queue[0].queued).queue[0]
        rest = oldest.queued + policy.max_delay - now
        if rest > 0 and len(ready) < policy.min_utilization * policy.num_slots and not is_draining:
            return [], rest
        return [box for box in ready if box.queue[0].key == oldest.key], 0.0
    batching = replace(policy.batching, max_delay=0.0) if is_draining else policy.batching
    queue = BatchQueue(batching)
    heads = {box.queue[0]: box for box in sorted(ready, key=lambda box: box.queue[0].queued)}
    for head in heads:
        # how long each may wait is this table's to say
        queue.add(head)
    batch, late, wait = next_batch(queue, batching, now)
    return [heads[head] for head in (*batch, *late)], wait
