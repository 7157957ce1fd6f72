"""Which replica holds which prefix."""

from kvcache.blocks import BlockPool
from kvcache.events import BlocksCleared, EventBatch, EventLog
from kvcache.hashes import extend_chain, root_hash
from kvcache.prefixes import PrefixIndex

TOKENS = list(range(8))
NAMES: list[bytes] = []
extend_chain(NAMES, root_hash("model"), TOKENS, 2)


def replica(num_blocks: int = 8) -> tuple[BlockPool, EventLog]:
    log = EventLog()
    return BlockPool(num_blocks, 2, log), log


def compute(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.allocate(count)
    for block, name in zip(blocks, NAMES, strict=False):
        pool.name(block, name, b"", [])
    return blocks


def test_each_replica_counts_its_own_prefix():
    index = PrefixIndex()
    for number, count in ((0, 1), (3, 4)):
        pool, log = replica()
        compute(pool, count)
        assert index.apply(number, log.drain())
    assert index.longest(NAMES) == {0: 1, 3: 4}
    assert index.longest([b"unknown", *NAMES]) == {}


def test_evicted_blocks_are_not_promised():
    index = PrefixIndex()
    pool, log = replica(4)
    pool.free(compute(pool, 4))
    index.apply(0, log.drain())
    pool.allocate(3)
    index.apply(0, log.drain())
    assert index.longest(NAMES) == {0: 1}
    pool.clear()
    index.apply(0, log.drain())
    assert index.longest(NAMES) == {}
    assert len(index) == 0


def test_a_lost_batch_forgets_the_replica_and_is_told():
    index = PrefixIndex()
    pool, log = replica()
    compute(pool, 2)
    assert index.apply(0, log.drain())
    assert index.apply(1, EventBatch(1, [])) is True
    assert index.apply(0, EventBatch(3, [])) is False
    assert index.longest(NAMES) == {}
    assert index.apply(0, EventBatch(4, [BlocksCleared()])) is True


def test_a_dead_replica_begins_anew():
    index = PrefixIndex()
    pool, log = replica()
    compute(pool, 2)
    batch = log.drain()
    index.apply(0, batch)
    index.forget(0)
    assert index.longest(NAMES) == {}
    assert index.apply(0, batch)
    assert index.longest(NAMES) == {0: 2}
