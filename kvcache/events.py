"""What happens to cached blocks, told to whoever routes by prefix."""

from dataclasses import dataclass, field

import msgspec


class BlockStored(msgspec.Struct, array_like=True, tag="stored", frozen=True):
    """A full block became findable under `name`; `parent` is the name of the block before it, or the root."""

    name: bytes
    parent: bytes
    tokens: list[int]


class BlockRemoved(msgspec.Struct, array_like=True, tag="removed", frozen=True):
    name: bytes


class BlocksCleared(msgspec.Struct, array_like=True, tag="cleared", frozen=True):
    pass


KvEvent = BlockStored | BlockRemoved | BlocksCleared


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    """The events of one step, in order. `sequence` counts batches from 1: a gap means that some were lost."""

    sequence: int
    events: list[KvEvent]


@dataclass(slots=True)
class EventLog:
    """Gathers a pool's events between two steps."""

    sequence: int = 0
    events: list[KvEvent] = field(default_factory=list)

    def drain(self) -> EventBatch | None:
        """The events since the last call, None when there were none."""
        if not self.events:
            return None
        self.sequence += 1
        batch, self.events = EventBatch(self.sequence, self.events), []
        return batch
