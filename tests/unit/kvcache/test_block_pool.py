"""The ledger of blocks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.blocks import BlockPool
from kvcache.events import BlockRemoved, BlocksCleared, BlockStored, EventLog
from kvcache.hashes import extend_chain, root_hash

ROOT = root_hash("model")


def names(tokens: list[int], block_size: int = 2, root: bytes = ROOT) -> list[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root, tokens, block_size)
    return chain


def filled(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Blocks of `tokens`, held, computed and named."""
    chain = names(tokens, pool.block_size)
    blocks = pool.allocate(len(chain))
    for index, (block, name) in enumerate(zip(blocks, chain, strict=True)):
        pool.name(block, name, chain[index - 1] if index else ROOT, tokens[index * 2 : index * 2 + 2])
    return blocks


def test_a_freed_block_is_found_until_it_is_allocated_again():
    pool = BlockPool(3, 2)
    blocks = filled(pool, [1, 2, 3, 4])
    pool.free(blocks)
    assert pool.num_free == 3
    assert pool.longest_prefix(names([1, 2, 3, 4, 5, 6]), 3) == blocks
    pool.allocate(3)
    assert pool.longest_prefix(names([1, 2, 3, 4]), 2) == []


def test_junk_is_reused_first_then_tails_before_heads():
    pool = BlockPool(4, 2)
    blocks = filled(pool, [1, 2, 3, 4])
    junk = pool.allocate(2)
    pool.free(blocks)
    pool.free(junk)
    assert set(pool.allocate(2)) == set(junk)
    assert pool.allocate(1) == [blocks[1]]
    assert pool.longest_prefix(names([1, 2, 3, 4]), 2) == [blocks[0]]


def test_what_was_used_lately_is_evicted_last():
    pool = BlockPool(2, 2)
    old, new = filled(pool, [1, 2]), filled(pool, [3, 4])
    pool.free(new)
    pool.free(old)
    pool.hold(new)
    pool.free(new)
    assert pool.allocate(1) == old


def test_free_hits_do_not_count_as_available():
    pool = BlockPool(3, 2)
    shared = filled(pool, [1, 2, 3, 4])
    assert pool.num_available(shared) == 1
    pool.free(shared)
    assert pool.num_free == 3
    assert pool.num_available(shared) == 1


def test_a_shared_block_is_free_only_when_nobody_holds_it():
    pool = BlockPool(2, 2)
    blocks = filled(pool, [1, 2])
    pool.hold(blocks)
    pool.free(blocks)
    assert pool.num_free == 1
    pool.free(blocks)
    assert pool.num_free == 2


def test_the_second_block_of_the_same_content_stays_nameless():
    pool = BlockPool(2, 2)
    first, second = filled(pool, [1, 2]), filled(pool, [1, 2])
    pool.check([first, second])
    assert pool.longest_prefix(names([1, 2]), 1) == first
    assert pool.num_cached == 1


def test_clear_forgets_names_and_keeps_what_is_held():
    pool = BlockPool(2, 2)
    blocks = filled(pool, [1, 2])
    pool.clear()
    pool.check([blocks])
    assert pool.longest_prefix(names([1, 2]), 1) == []


def test_events_tell_what_can_be_found():
    log = EventLog()
    pool = BlockPool(1, 2, log)
    pool.free(filled(pool, [1, 2]))
    pool.free(filled(pool, [3, 4]))
    first = log.drain()
    assert first is not None
    (one,), (two,) = names([1, 2]), names([3, 4])
    assert first.sequence == 1
    assert first.events == [BlockStored(one, ROOT, [1, 2]), BlockRemoved(one), BlockStored(two, ROOT, [3, 4])]
    assert log.drain() is None
    pool.clear()
    second = log.drain()
    assert second is not None
    assert (second.sequence, second.events) == (2, [BlocksCleared()])


def test_names_depend_on_everything_before_and_on_the_kind_of_each_field():
    assert names([1, 2, 3, 4])[0] == names([1, 2, 5, 6])[0]
    assert names([1, 2, 3, 4])[1] != names([5, 6, 3, 4])[1]
    roots = {
        root_hash("m"),
        root_hash("n"),
        root_hash("m", salt="a"),
        root_hash("m", adapter="a"),
        root_hash("m", salt="a", adapter="b"),
        root_hash("m", salt="b", adapter="a"),
        root_hash("m", salt="ab"),
        root_hash("m", salt="\ud800"),
    }
    assert len(roots) == 8


def test_extending_a_chain_in_pieces_gives_the_same_names():
    chain: list[bytes] = []
    for length in (1, 2, 3, 7, 8):
        extend_chain(chain, ROOT, list(range(length)), 2)
    assert chain == names(list(range(8)))


class PoolMachine(RuleBasedStateMachine):
    """Random sequences come and go; what a lookup finds must hold exactly the content that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8, 2)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=10))
    def start(self, tokens: list[int]) -> None:
        chain = names(tokens)
        hits = self.pool.longest_prefix(chain, len(chain))
        assert [self.content[block] for block in hits] == chain[: len(hits)]
        if len(chain) - len(hits) > self.pool.num_available(hits):
            return
        self.pool.hold(hits)
        blocks = hits + self.pool.allocate(len(chain) - len(hits))
        for index in range(len(hits), len(chain)):
            self.content[blocks[index]] = chain[index]
            self.pool.name(blocks[index], chain[index], ROOT, [])
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data) -> None:
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @invariant()
    def is_conserved(self) -> None:
        self.pool.check(self.held)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
