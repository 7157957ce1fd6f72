"""Which replica holds which prefix, learned from the replicas' block events."""

from collections.abc import Sequence

from kvcache.events import BlockRemoved, BlocksCleared, BlockStored, EventBatch


class PrefixIndex:
    """Block name -> replicas that can find it, as a bit mask. Replicas are small numbers."""

    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}
        self._sequences: dict[int, int] = {}

    def apply(self, replica: int, batch: EventBatch) -> bool:
        """Take in a replica's events. False when a batch before this one was lost.

        What was known of the replica is then forgotten: too few hits cost time, wrong ones mislead.
        """
        expected = self._sequences.get(replica, 0) + 1
        complete = batch.sequence == expected
        if not complete:
            self.forget(replica)
        self._sequences[replica] = batch.sequence
        bit = 1 << replica
        for event in batch.events:
            match event:
                case BlockStored():
                    self._holders[event.name] = self._holders.get(event.name, 0) | bit
                case BlockRemoved():
                    self._drop(event.name, bit)
                case BlocksCleared():
                    self._drop_all(bit)
        return complete

    def forget(self, replica: int) -> None:
        """The replica has died or restarted: nothing is cached there, and its next batch is number 1."""
        self._sequences.pop(replica, None)
        self._drop_all(1 << replica)

    def longest(self, names: Sequence[bytes]) -> dict[int, int]:
        """For each replica that holds the first of `names`, how many of them in a row it holds."""
        found: dict[int, int] = {}
        alive = -1
        for count, name in enumerate(names, 1):
            alive &= self._holders.get(name, 0)
            if not alive:
                break
            for replica in _bits(alive):
                found[replica] = count
        return found

    def __len__(self) -> int:
        return len(self._holders)

    def _drop(self, name: bytes, bit: int) -> None:
        left = self._holders.get(name, 0) & ~bit
        if left:
            self._holders[name] = left
        else:
            self._holders.pop(name, None)

    def _drop_all(self, bit: int) -> None:
        for name in [name for name, holders in self._holders.items() if holders & bit]:
            self._drop(name, bit)


def _bits(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]
