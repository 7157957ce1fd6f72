"""All attention kernels that run here agree with the dense reference on random ragged batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.lm.attention.reference import ReferenceAttention
from backends.lm.attention.torch_gather import GatherAttention
from backends.lm.cpu import cpu_ops
from backends.lm.cpu.features import cpu_features
from backends.lm.ops import Attention, AttentionBatch, AttentionSpec

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
needs_avx512 = pytest.mark.skipif(not cpu_features().avx512, reason="kernels for AVX-512")


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """The reference makes many tiny torch calls, which a second thread only slows down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Case:
    spec: AttentionSpec
    block_size: int
    steps: list[list[int]]  # tokens each sequence brings in each step
    seed: int


@st.composite
def cases(draw: st.DrawFn, longest: int = 600) -> Case:
    kv_heads, shared = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    dim = draw(st.sampled_from([16, 18, 32, 48, 64, 80, 128, 256]))
    window = draw(st.sampled_from([0, 0, 1, 7, 64, 100, 600]))
    softcap = draw(st.sampled_from([0.0, 0.0, 5.0, 50.0]))
    sequences = draw(st.integers(1, 4))
    tokens = st.sampled_from([0, 1, 1, 2, 15, 16, 17, 40, 90, longest])
    steps = draw(st.lists(st.lists(tokens, min_size=sequences, max_size=sequences), min_size=1, max_size=4))
    return Case(
        AttentionSpec(kv_heads * shared, kv_heads, dim, dim**-0.5, window, softcap),
        draw(st.sampled_from([8, 12, 16, 32, 48, 64])),
        [step for step in steps if sum(step)] or [[1] * sequences],
        draw(st.integers(0, 2**31)),
    )


class Driver:
    """Sequences that grow step by step, in blocks that lie anywhere; keys and values are random."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._rng = np.random.default_rng(case.seed)
        torch.manual_seed(case.seed)
        totals = np.sum(case.steps, axis=0)
        needed = -(-totals // case.block_size)
        self.num_blocks = int(needed.sum()) + 1
        places = self._rng.permutation(self.num_blocks).astype(np.int32)
        self._table = np.full((len(totals), int(needed.max())), -1, dtype=np.int32)
        for s, count in enumerate(needed):
            self._table[s, :count], places = places[:count], places[count:]

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionBatch]]:
        spec, result = self.case.spec, []
        lengths = np.zeros(len(self._table), dtype=np.int32)
        for step in self.case.steps:
            counts = np.array(step, dtype=np.int32)
            lengths = lengths + counts
            rows = np.flatnonzero(counts)
            tokens = int(counts.sum())
            q = torch.randn(tokens, spec.num_heads, spec.head_dim)
            k, v = (torch.randn(tokens, spec.num_kv_heads, spec.head_dim) for _ in range(2))
            result.append((q, k, v, self._batch(rows, counts[rows], lengths[rows])))
        return result

    def _batch(self, rows: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> AttentionBatch:
        size = self.case.block_size
        positions = np.concatenate([np.arange(n - c, n) for n, c in zip(lengths, counts, strict=True)]).astype(np.int32)
        of_token = np.repeat(rows, counts)
        slots = self._table[of_token, positions // size].astype(np.int64) * size + positions % size
        return AttentionBatch(
            query_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            context_lens=lengths.astype(np.int32),
            block_table=np.ascontiguousarray(self._table[rows]),
            positions=positions,
            slots=slots,
            max_query=int(counts.max()),
            max_context=int(lengths.max()),
        )


def agree(case: Case, attention: Attention, driver: Driver, dtype: torch.dtype) -> None:
    reference = ReferenceAttention(case.spec, driver.num_blocks, case.block_size)
    for q, k, v, batch in driver.batches():
        q, k, v = (x.to(dtype).float() for x in (q, k, v))
        wanted = reference(q, k, v, batch)
        got = attention(q, k, v, batch)
        assert got.shape == wanted.shape
        torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE[dtype])


@given(cases(longest=90))
@settings(max_examples=20, deadline=None)
def test_gathering_agrees_with_the_reference(case: Case) -> None:
    driver = Driver(case)
    attention = GatherAttention(case.spec, driver.num_blocks, case.block_size, torch.float32, CPU)
    agree(case, attention, driver, torch.float32)


@needs_avx512
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(cases())
@settings(max_examples=25, deadline=None)
def test_the_cpu_kernel_agrees_with_the_reference(dtype: torch.dtype, case: Case) -> None:
    driver = Driver(case)
    ops = cpu_ops(str(dtype).removeprefix("torch."), 1)
    agree(case, ops.attention(case.spec, driver.num_blocks, case.block_size), driver, dtype)


@needs_avx512
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [0, 50, 700])
@pytest.mark.parametrize("tokens", [150, 1300])  # within one span of the context, and in three
def test_cutting_and_batching_change_no_bit(dtype: str, window: int, tokens: int) -> None:
    spec = AttentionSpec(9, 3, 64, 0.125, window)
    torch.manual_seed(0)
    q, k, v = torch.randn(tokens, 9, 64), torch.randn(tokens, 3, 64), torch.randn(tokens, 3, 64)

    def run(cuts: list[int]) -> torch.Tensor:
        driver = Driver(Case(spec, 16, [[n] for n in cuts], seed=len(cuts)))
        attention = cpu_ops(dtype, 2).attention(spec, driver.num_blocks, 16)
        pieces, start = [], 0
        for count, (_, _, _, batch) in zip(cuts, driver.batches(), strict=True):
            at = slice(start, start + count)
            pieces.append(attention(q[at], k[at], v[at], batch).clone())
            start += count
        return torch.cat(pieces)

    whole = run([tokens])
    for cuts in ([tokens - 86, 64, 22], [tokens - 120, *[1] * 120], [7, tokens - 50, 1, 1, 41]):
        assert torch.equal(run(cuts), whole)


@needs_avx512
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_an_earlier_sequence_left_in_a_block_is_never_seen(dtype: str) -> None:
    spec = AttentionSpec(2, 1, 16, 0.25)
    attention = cpu_ops(dtype, 1).attention(spec, 1, 16)

    def run(tokens: int, fill: float) -> torch.Tensor:
        batch = AttentionBatch(
            query_starts=np.array([0, tokens], dtype=np.int32),
            context_lens=np.array([tokens], dtype=np.int32),
            block_table=np.zeros((1, 1), dtype=np.int32),
            positions=np.arange(tokens, dtype=np.int32),
            slots=np.arange(tokens, dtype=np.int64),
            max_query=tokens,
            max_context=tokens,
        )
        q, k, v = torch.ones(tokens, 2, 16), torch.ones(tokens, 1, 16), torch.full((tokens, 1, 16), fill)
        return attention(q, k, v, batch).clone()

    clean = run(3, 1.0)
    for poison in (float("nan"), float("inf"), -float("inf")):
        run(16, poison)
        assert torch.equal(run(3, 1.0), clean)


@needs_avx512
@pytest.mark.parametrize(("dim", "block_size", "named"), [(512, 16, "512"), (15, 16, "15"), (64, 24, "24")])
def test_shapes_without_a_kernel_are_refused_by_name(dim: int, block_size: int, named: str) -> None:
    with pytest.raises(ServingError, match=named) as refusal:
        cpu_ops("bfloat16", 1).attention(AttentionSpec(2, 1, dim, 1.0), 4, block_size)
    assert refusal.value.code is Code.UNSUPPORTED
