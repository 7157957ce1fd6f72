"""Rows of any lengths, packed end to end and in groups that are worth padding."""

from hypothesis import given
from hypothesis import strategies as st

from backends.pooling.packing import pack, padded_groups, similar
from backends.pooling.runner import Row

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(LENGTHS, st.one_of(st.none(), st.integers(1, 2000)))
def test_every_row_is_in_one_group_of_similar_ones_the_longest_first(lengths, max_tokens):
    groups = similar(lengths, max_tokens)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest, shortest = lengths[group[0]], min(lengths[index] for index in group)
        assert longest == max(lengths[index] for index in group)
        assert shortest >= 0.75 * longest - 8
        assert max_tokens is None or len(group) == 1 or longest * len(group) <= max_tokens


@given(LENGTHS)
def test_a_packed_row_is_found_where_its_start_says(lengths):
    rows = [Row(list(range(1, length + 1)), length // 3) for length in lengths]
    packed = pack(rows)
    assert 0 <= len(packed.tokens) - sum(lengths) < 16
    assert len(packed.tokens) <= 64 or len(packed.tokens) % 16 == 0
    for row, start, end in zip(rows, packed.starts[:-1], packed.starts[1:], strict=True):
        length = len(row.tokens)
        assert packed.tokens[start:end].tolist() == list(row.tokens)
        assert packed.positions[start:end].tolist() == list(range(length))
        assert packed.types[start:end].tolist() == [0] * row.second + [1] * (length - row.second)
    assert not packed.tokens[packed.starts[-1] :].any()


@given(LENGTHS)
def test_attention_sees_every_token_of_a_row_and_none_of_another(lengths):
    import torch

    packed = pack([Row([1] * length, length) for length in lengths])
    seen = []
    for group in padded_groups(packed, torch.float32, torch.device("cpu")):
        flat = group.take.reshape(-1)
        assert torch.equal(flat[group.kept], group.put)
        assert (group.mask is None) == (len(group.kept) == len(flat))
        if group.mask is not None:
            assert torch.equal((group.mask == 0).reshape(-1).nonzero()[:, 0], group.kept)
        for places in group.take:
            row = int(torch.searchsorted(torch.from_numpy(packed.starts), places[0], right=True)) - 1
            assert packed.starts[row] <= int(places.min())
            assert int(places.max()) < packed.starts[row + 1]
        seen += group.put.tolist()
    assert sorted(seen) == list(range(sum(lengths)))
