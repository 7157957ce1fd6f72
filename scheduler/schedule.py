"""The engine's state: which sequences run, which wait, and who holds which row and blocks."""

from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np

from kvcache.blocks import BlockPool
from scheduler.token_sequence import TokenSequence

_HEADROOM_DECAY = 0.99


def _order(sequence: TokenSequence) -> tuple[int, float, int]:
    return sequence.order


class Schedule:
    """Owns the sequences, their rows and their blocks. Changed by `plan`, `commit` and the engine, on one thread.

    `running` and `waiting` are in order of importance: priority, then arrival. A preempted sequence thereby stands
    in front of those that never ran. Nobody waits for a sequence that waits itself, so waiting always ends.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_len: int, *, caches_prefixes: bool = True) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_len = min(max_len, pool.num_blocks * pool.block_size)
        self.caches_prefixes = caches_prefixes
        self.running: list[TokenSequence] = []
        self.waiting: list[TokenSequence] = []
        self.free_rows = list(reversed(range(max_num_seqs)))
        # The block table of every row; only the columns of the row's blocks mean anything.
        self.table = np.zeros((max_num_seqs, -(-self.max_len // pool.block_size)), dtype=np.int32)
        # Name of a block that a running sequence has still to compute -> that sequence.
        self.coming: dict[bytes, TokenSequence] = {}
        # Tokens that each running sequence should be able to grow by before another is let in. Doubles with
        # every preemption and sinks slowly, so that a full pool does not swap two sequences for ever.
        self.headroom = float(pool.block_size)
        self.num_preemptions = 0
        self.num_cache_queries = 0  # prompt tokens looked up
        self.num_cache_hits = 0  # prompt tokens found

    def __iter__(self) -> Iterator[TokenSequence]:
        yield from self.running
        yield from self.waiting

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    def enqueue(self, sequence: TokenSequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def start(self, sequence: TokenSequence, hits: list[int]) -> None:
        """From waiting to running, with a row, its cached blocks `hits` and blocks for all its tokens."""
        del self.waiting[self._position(self.waiting, sequence)]
        insort(self.running, sequence, key=_order)
        sequence.row = self.free_rows.pop()
        self.pool.hold(hits)
        sequence.blocks = []
        self._extend(sequence, hits)
        self._extend(sequence, self.pool.allocate(self.num_blocks_for(len(sequence.tokens)) - len(hits)))
        sequence.computed = len(hits) * self.pool.block_size
        sequence.num_named = len(hits)
        for name in sequence.names[len(hits) :]:
            self.coming.setdefault(name, sequence)

    def grow(self, sequence: TokenSequence, length: int) -> None:
        """Blocks for `length` tokens; the caller has seen to it that they are free."""
        self._extend(sequence, self.pool.allocate(self.num_blocks_for(length) - len(sequence.blocks)))

    def preempt(self, sequence: TokenSequence) -> None:
        """Back to waiting without blocks, to be computed again. Its row is free, its tokens are kept."""
        self.remove(sequence)
        sequence.drafts = []
        if not sequence.has_answered:
            sequence.prompt_logprobs = [None]
        self.enqueue(sequence)
        self.num_preemptions += 1
        self.headroom = min(2 * self.headroom, self.max_len)

    def remove(self, sequence: TokenSequence) -> None:
        """Out of running or waiting; its blocks and row are free. Its `row` still says which it was."""
        if not sequence.blocks:
            del self.waiting[self._position(self.waiting, sequence)]
            return
        del self.running[self._position(self.running, sequence)]
        for name in sequence.names[sequence.num_named :]:
            self._no_longer_coming(name, sequence)
        self.pool.free(sequence.blocks)
        self.free_rows.append(sequence.row)
        sequence.blocks = []
        sequence.computed = 0
        sequence.num_named = 0

    def name_blocks(self, sequence: TokenSequence) -> None:
        """Make those blocks findable that are full and computed by now."""
        block_size, tokens = self.pool.block_size, sequence.tokens
        num_full = min(sequence.computed, len(tokens)) // block_size
        sequence.extend_names(block_size)
        for index in range(sequence.num_named, num_full):
            name = sequence.names[index]
            parent = sequence.names[index - 1] if index else sequence.root
            self.pool.name(sequence.blocks[index], name, parent, tokens[index * block_size : (index + 1) * block_size])
            self._no_longer_coming(name, sequence)
        sequence.num_named = max(num_full, sequence.num_named)

    def num_blocks_for(self, length: int) -> int:
        return -(-length // self.pool.block_size)

    def num_reserved(self, newcomer: TokenSequence) -> int:
        """Blocks to leave free beside a newcomer's own, so that it and those that run can grow for a while."""
        headroom, block_size = int(self.headroom), self.pool.block_size
        if not self.running:
            return 0
        reserved = max(1, self.pool.num_blocks // 100)
        for sequence in (*self.running, newcomer):
            length = len(sequence.tokens)
            reserved += -(-(length + min(headroom, sequence.max_len - length)) // block_size) - -(-length // block_size)
        return reserved

    def relax(self) -> None:
        """A step went by: ask for a little less headroom."""
        self.headroom = max(self.headroom * _HEADROOM_DECAY, self.pool.block_size)

    def check(self) -> None:
        """Every law that holds between two steps. Raises AssertionError."""
        self.pool.check(sequence.blocks for sequence in self.running)
        rows = [sequence.row for sequence in self.running]
        assert sorted(rows + self.free_rows) == list(range(self.max_num_seqs))
        assert self.running == sorted(self.running, key=_order)
        assert self.waiting == sorted(self.waiting, key=_order)
        for sequence in self.running:
            assert sequence.computed < len(sequence.tokens) <= sequence.max_len
            assert len(sequence.blocks) * self.pool.block_size >= sequence.computed
            assert self.table[sequence.row, : len(sequence.blocks)].tolist() == sequence.blocks
        for sequence in self.waiting:
            assert not sequence.blocks
            assert not sequence.computed
        assert all(leader in self.running for leader in self.coming.values())

    def _extend(self, sequence: TokenSequence, blocks: list[int]) -> None:
        start = len(sequence.blocks)
        sequence.blocks += blocks
        self.table[sequence.row, start : start + len(blocks)] = blocks

    def _no_longer_coming(self, name: bytes, sequence: TokenSequence) -> None:
        if self.coming.get(name) is sequence:
            del self.coming[name]

    def _position(self, sequences: list[TokenSequence], sequence: TokenSequence) -> int:
        position = bisect_left(sequences, sequence.order, key=_order)
        assert sequences[position] is sequence
        return position
