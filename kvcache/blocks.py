"""The ledger of KV blocks: who holds which, which are free, and which of the free ones still have content worth finding."""

from collections.abc import Iterable, Sequence

from kvcache.events import BlockRemoved, BlocksCleared, BlockStored, EventLog


class BlockPool:
    """Counts references to `num_blocks` blocks and finds full blocks by name.

    A block is held (count > 0) or free (count 0, in the free list). A free block keeps its name and content until
    it is allocated again. The free list is in order of eviction: blocks without a name first, then the least
    recently freed. A name belongs to one block; a second block of the same content stays nameless.
    """

    def __init__(self, num_blocks: int, block_size: int, events: EventLog | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._events = events
        self._counts = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # The free list, doubly linked through a sentinel at index num_blocks.
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, cached ones among them."""
        return self._num_free

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by name, held or free."""
        return len(self._block_of)

    def longest_prefix(self, names: Sequence[bytes], limit: int) -> list[int]:
        """The blocks of the longest run of `names[:limit]` that is cached, from the first name on. Holds nothing."""
        found: list[int] = []
        for name in names[:limit]:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def num_available(self, hits: Sequence[int]) -> int:
        """How many blocks could be allocated once `hits` are held: hits that are free now will not be."""
        counts = self._counts
        return self._num_free - sum(1 for block in hits if not counts[block])

    def hold(self, blocks: Iterable[int]) -> None:
        """One reference more to each: how a cached prefix is taken."""
        for block in blocks:
            if not self._counts[block]:
                self._unlink(block)
            self._counts[block] += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, held once, whose content is junk; the caller has seen to it that so many are free."""
        assert count <= self._num_free
        blocks = []
        for _ in range(count):
            block = self._next[self.num_blocks]
            self._unlink(block)
            self._forget(block)
            self._counts[block] = 1
            blocks.append(block)
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each of a sequence's blocks, in the sequence's order.

        Tails go before heads, so that a shared beginning is evicted last.
        """
        for block in reversed(blocks):
            self._counts[block] -= 1
            if not self._counts[block]:
                self._link(block)

    def name(self, block: int, name: bytes, parent: bytes, tokens: list[int]) -> None:
        """A held block is full and computed: from now on it can be found. Nothing if the name is taken."""
        if name in self._block_of:
            return
        assert self._counts[block]
        assert self._names[block] is None
        self._names[block] = name
        self._block_of[name] = block
        if self._events is not None:
            self._events.events.append(BlockStored(name, parent, tokens))

    def clear(self) -> None:
        """Forget every name; who holds a block keeps it."""
        for block in self._block_of.values():
            self._names[block] = None
        self._block_of.clear()
        if self._events is not None:
            self._events.events.append(BlocksCleared())

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Recount everything against the block tables of all sequences. Raises AssertionError."""
        counts = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a sequence holds a block twice"
            for block in table:
                counts[block] += 1
        assert counts == self._counts, "reference counts differ from the tables"
        free = self._free_list()
        assert len(free) == len(set(free)) == self._num_free
        assert set(free) == {block for block, count in enumerate(counts) if not count}
        named = {name: block for block, name in enumerate(self._names) if name is not None}
        assert named == self._block_of

    def _free_list(self) -> list[int]:
        blocks = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            assert self._previous[self._next[block]] == block
            blocks.append(block)
            block = self._next[block]
        return blocks

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._num_free -= 1

    def _link(self, block: int) -> None:
        """To the end if it can be found again, to the front if it is junk."""
        end = self.num_blocks
        if self._names[block] is None:
            before, after = end, self._next[end]
        else:
            before, after = self._previous[end], end
        self._previous[block], self._next[block] = before, after
        self._next[before] = self._previous[after] = block
        self._num_free += 1

    def _forget(self, block: int) -> None:
        name, self._names[block] = self._names[block], None
        if name is None:
            return
        del self._block_of[name]
        if self._events is not None:
            self._events.events.append(BlockRemoved(name))
