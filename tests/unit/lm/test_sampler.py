"""The sampler's laws, against a reference that sorts everything and shares nothing with it."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.api.request import MAX_REPETITION_PENALTY, MAX_TEMPERATURE, MIN_REPETITION_PENALTY, SamplingParams
from backends.lm.sampler import Sampler
from backends.lm.sampler_choice import NO_TOKEN, RowSampler
from backends.lm.sampler_row import SamplingRow
from backends.lm.sampler_torch import BatchParams, draw_batch
from backends.lm.sampler_uniform import uniforms

VOCAB = 150  # more than two groups of tokens, and not a multiple of the stripes
EOS = 7


def params(**changed: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **changed)


def logits_of(seed: int, lines: int = 1, scale: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (lines, VOCAB)).astype(np.float32))


def sampler_with(rows: dict[int, tuple[SamplingParams, int]], prompt: Sequence[int] = (1, 2, 3)) -> Sampler:
    sampler = Sampler(16, VOCAB, frozenset({EOS}))
    for row, (sampling, seed) in rows.items():
        sampler.add(row, list(prompt), len(prompt), sampling, seed)
    return sampler


def one(sampler: Sampler, logits: torch.Tensor, row: int = 0, position: int = 3) -> int:
    return sampler.sample(logits.clone(), np.array([row]), np.array([position])).tokens[0]


# What is drawn from


def reference_distribution(
    row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[np.ndarray, float]:
    """Probabilities in float64, and how near a token came to being cut otherwise by top_p."""
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    order = np.argsort(-row, kind="stable")
    kept = order[:top_k] if top_k else order
    share = np.cumsum(weights[kept]) / weights[kept].sum()
    margin = 1.0
    if top_p < 1.0:
        margin = float(np.abs(share - top_p).min())
        kept = kept[: int(np.searchsorted(share, top_p)) + 1]
    if min_p > 0.0:
        margin = min(margin, float(np.abs(weights[kept] - min_p).min()))
        kept = kept[weights[kept] >= min_p]
    probabilities = np.zeros(len(row))
    probabilities[kept] = weights[kept] / weights[kept].sum()
    return probabilities, margin


def test_a_top_p_next_to_one_always_finds_a_token() -> None:
    # sums in float32 and float64 differ by more than what such a top_p leaves out: so in these rows
    sampler, top_p = RowSampler(VOCAB), float(np.float32(0.9999999))
    for seed in (*range(50), 167, 171, 267, 441, 543, 934):
        row = logits_of(seed, scale=40.0)[0].numpy()
        assert np.isfinite(row[sampler.draw(row, 0.5, 1.0, 0, top_p, 0.0)])


ROWS = st.lists(st.sampled_from([-np.inf, -3.0, -1.0, 0.0, 0.5, 0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=VOCAB).map(
    lambda values: np.array(values, np.float32)
)
CUTS = {
    "temperature": st.sampled_from([0.3, 1.0, 2.5]),
    "top_k": st.integers(0, 20),
    "top_p": st.sampled_from([1.0, 0.97, 0.71, 0.29, 0.013]),
    "min_p": st.sampled_from([0.0, 0.0, 0.03, 0.31]),
}
GRID = (np.arange(200) + 0.5) / 200


@settings(max_examples=60, deadline=None)
@given(row=ROWS, cuts=st.fixed_dictionaries(CUTS))
def test_a_row_is_drawn_from_exactly_the_distribution_that_its_settings_leave(
    row: np.ndarray, cuts: dict[str, Any]
) -> None:
    assume(np.isfinite(row.max()))
    top_k = cuts["top_k"] if cuts["top_k"] < len(row) else 0
    want, margin = reference_distribution(row, **{**cuts, "top_k": top_k})
    assume(margin > 1e-4)
    draw = RowSampler(len(row)).draw
    drawn = Counter(draw(row, uniform, cuts["temperature"], top_k, cuts["top_p"], cuts["min_p"]) for uniform in GRID)
    counts = np.array([drawn[token] for token in range(len(row))])
    # evenly spaced numbers fall into each token's stretch to within one at each end
    assert np.abs(counts - want * len(GRID)).max() <= 2.0
    assert not counts[want == 0.0].any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.fixed_dictionaries(CUTS), look=st.sampled_from([5, 1024]))
def test_a_batch_on_a_device_draws_from_the_same_distribution(seed: int, cuts: dict[str, Any], look: int) -> None:
    row = logits_of(seed, scale=2.0)
    want, margin = reference_distribution(row[0].numpy(), **cuts)
    assume(margin > 1e-4)
    lines = len(GRID)
    full = {name: torch.full((lines,), value, dtype=torch.float32) for name, value in cuts.items()}
    full["top_k"] = full["top_k"].long()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backends.lm.sampler_torch._FIRST_LOOK", look)
        tokens = draw_batch(row.expand(lines, -1), BatchParams(torch.from_numpy(GRID), **full))
    counts = np.bincount(tokens.numpy(), minlength=VOCAB)
    assert np.abs(counts - want * lines).max() <= 2.0
    assert not counts[want == 0.0].any()


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.8}, {"top_k": 12}, {"min_p": 0.05}, {"temperature": 0.6}])
def test_tokens_over_many_positions_pass_a_chi_square_test(cuts: dict[str, Any]) -> None:
    logits, draws = logits_of(4), 4000
    sampling = params(**cuts)
    sampler = sampler_with({0: (sampling, 99)})
    lines = sampler.sample(logits.repeat(draws, 1), np.zeros(draws, np.int64), np.arange(draws))
    want, _ = reference_distribution(
        logits[0].numpy(), sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
    )
    counts = np.bincount(lines.tokens, minlength=VOCAB)
    assert not counts[want == 0.0].any()
    often = want * draws >= 5
    rest = max((want[~often] * draws).sum(), 1e-9)
    statistic = ((counts[often] - want[often] * draws) ** 2 / (want[often] * draws)).sum()
    statistic += (counts[~often].sum() - rest) ** 2 / rest if rest > 1 else 0.0
    degrees = often.sum()
    assert statistic < degrees + 4 * np.sqrt(2 * degrees)  # four standard deviations of chi-square


# Seeds, batches and rows


def test_uniform_numbers_are_even_and_unrelated_between_near_seeds_and_positions() -> None:
    seeds, positions = np.repeat(np.arange(100, dtype=np.uint64), 100), np.tile(np.arange(100), 100)
    numbers = uniforms(seeds, positions)
    assert len(np.unique(numbers)) == len(numbers)
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.bincount((numbers * 50).astype(int), minlength=50)
    assert ((counts - 200) ** 2 / 200).sum() < 49 + 4 * np.sqrt(98)
    table = numbers.reshape(100, 100)
    for left, right in [*pairwise(table), *pairwise(table.T)]:
        assert abs(np.corrcoef(left, right)[0, 1]) < 0.45


@given(order=st.permutations(range(8)), first=st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_the_same_seed_gives_the_same_token_alone_and_in_any_batch(order: list[int], first: int) -> None:
    kinds = [
        {},
        {"temperature": 0.0},
        {"top_p": 0.7},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.7},
        {"logit_bias": {4: 3.0}},
        {"logprobs": 2, "temperature": 1.5},
    ]
    logits, positions = logits_of(11, lines=8), np.arange(8) + 3
    alone = [
        one(sampler_with({0: (params(**kind), 50 + index)}), logits[index : index + 1], 0, int(positions[index]))
        for index, kind in enumerate(kinds)
    ]
    # row numbers other than the places in the batch
    sampler = sampler_with({(index + first) % 16: (params(**kind), 50 + index) for index, kind in enumerate(kinds)})
    rows = (np.array(order) + first) % 16
    together = sampler.sample(logits[order].clone(), rows, positions[order])
    assert together.tokens == [alone[index] for index in order]


def test_a_row_taken_again_keeps_nothing_of_its_last_sequence() -> None:
    logits = logits_of(5)
    sampler = sampler_with({0: (params(temperature=0.0), 1)})
    plain = one(sampler, logits)
    for sampling in [
        params(logit_bias={plain: -100.0}),
        params(allowed_token_ids=(3,)),
        params(bad_words=((plain,),)),
        params(temperature=1.5, top_p=0.3, seed=3),
        params(repetition_penalty=5.0, logprobs=3),
    ]:
        sampler.remove(0)
        sampler.add(0, [plain], 1, sampling, 9)
        one(sampler, logits)
        sampler.remove(0)
        sampler.add(0, [1], 1, params(temperature=0.0), 1)
        assert one(sampler, logits) == plain == int(logits.argmax())


def test_any_integer_is_a_seed() -> None:
    for seed in (-1, 0, 2**63 - 1, -(2**63), 2**70):
        assert 0 <= one(sampler_with({0: (params(), seed)}), logits_of(1)) < VOCAB


# Greedy


@settings(deadline=None)
@given(seed=st.integers(0, 500))
def test_greedy_is_the_argmax(seed: int) -> None:
    logits = logits_of(seed, lines=4)
    sampler = sampler_with({row: (params(temperature=0.0), row) for row in range(4)})
    tokens = sampler.sample(logits.clone(), np.arange(4), np.arange(4)).tokens
    assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("kind", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}])
def test_cuts_that_leave_one_token_are_greedy_at_any_temperature(kind: dict[str, Any]) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [9, 40]] = 2.0  # equal best tokens: the first of them
    sampler = sampler_with({0: (params(temperature=2.0, **kind), 5)})
    assert {one(sampler, logits, position=position) for position in range(50)} == {9}


@settings(max_examples=60, deadline=None)
@given(
    penalty=st.sampled_from([MIN_REPETITION_PENALTY, 1.0, MAX_REPETITION_PENALTY]),
    others=st.sampled_from([-2.0, 0.0, 2.0]),
    bias=st.sampled_from([-100.0, 100.0]),
    temperature=st.sampled_from([0.0, 5e-324, 1e-5, MAX_TEMPERATURE]),
    top_p=st.sampled_from([5e-324, 1.0]),
    min_p=st.sampled_from([0.0, 5e-324]),
    scale=st.sampled_from([0.0, 1e-30, 3.0, 1e4]),
    allowed=st.sampled_from([None, (3, 5)]),
)
def test_the_most_extreme_settings_that_are_taken_still_choose_a_token(
    penalty: float,
    others: float,
    bias: float,
    temperature: float,
    top_p: float,
    min_p: float,
    scale: float,
    allowed: tuple[int, ...] | None,
) -> None:
    sampling = params(
        repetition_penalty=penalty,
        presence_penalty=others,
        frequency_penalty=others,
        logit_bias={3: bias, 4: bias},
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        allowed_token_ids=allowed,
    )
    token = one(sampler_with({0: (sampling, 1)}), logits_of(1, scale=scale))
    assert token in (allowed or range(VOCAB))


def test_the_form_for_devices_takes_each_lines_own_settings() -> None:
    kinds = [{"temperature": 0.0}, {"top_k": 1}, {}, {"top_k": 3}, {"top_p": 0.5, "temperature": 0.4}, {"min_p": 0.3}]
    sampler = sampler_with({row + 2: (params(**kind), 7 * row) for row, kind in enumerate(kinds)})
    logits, rows = logits_of(21, lines=len(kinds)), np.arange(len(kinds)) + 2
    for number in GRID[::10]:
        numbers = np.full(len(kinds), number)
        tokens = sampler._draw_batch(logits.clone(), rows, numbers)
        assert tokens[:2] == logits[:2].argmax(-1).tolist()
        for line, kind in enumerate(kinds[2:], start=2):
            how = params(**kind)
            want, _ = reference_distribution(logits[line].numpy(), how.temperature, how.top_k, how.top_p, how.min_p)
            assert want[tokens[line]] > 0.0


@pytest.mark.gpu
def test_a_cuda_device_takes_edits_masks_and_log_probabilities_like_the_cpu() -> None:
    kinds = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "repetition_penalty": 2.0, "logit_bias": {4: 2.5}, "logprobs": 1},
        {"top_k": 1, "bad_words": ((5,),)},
        {"allowed_token_ids": (9,)},
    ]
    logits, rows, positions = logits_of(31, lines=len(kinds)), np.arange(len(kinds)), np.full(len(kinds), 3)
    sampler = sampler_with({row: (params(**kind), row) for row, kind in enumerate(kinds)})
    here = sampler.sample(logits.clone(), rows, positions)
    there = sampler.sample(logits.to("cuda"), rows, positions)
    assert there == here


# Edits


def reference_edit(row: np.ndarray, sampling: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    row = row.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    if sampling.allowed_token_ids is not None:
        row[[token for token in range(VOCAB) if token not in sampling.allowed_token_ids]] = -np.inf
    for word in sampling.bad_words:
        if output[len(output) - len(word) + 1 :] == list(word[:-1]) and len(output) >= len(word) - 1:
            row[word[-1]] = -np.inf
    if len(output) < sampling.min_tokens:
        row[[*sampling.stop_token_ids, *([] if sampling.ignore_eos else [EOS])]] = -np.inf
    for token in range(VOCAB):
        if token in prompt or token in output:
            factor = sampling.repetition_penalty
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
        row[token] -= sampling.frequency_penalty * output.count(token)
        row[token] -= sampling.presence_penalty * (token in output)
    return row


TOKENS = st.integers(0, 12)
HISTORY = st.lists(TOKENS, max_size=12)
SAMPLING = st.builds(
    params,
    logit_bias=st.dictionaries(TOKENS, st.floats(-5, 5, width=32), max_size=3),
    allowed_token_ids=st.none() | st.lists(TOKENS, min_size=1, max_size=8, unique=True).map(tuple),
    bad_words=st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.lists(TOKENS, max_size=2).map(tuple),
    ignore_eos=st.booleans(),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.5, 0.8]),
    frequency_penalty=st.sampled_from([0.0, -0.4, 0.9]),
)


@settings(max_examples=120, deadline=None)
@given(sampling=SAMPLING, prompt=HISTORY, before=HISTORY, after=HISTORY, pending=st.lists(TOKENS, max_size=3))
def test_edits_are_those_of_the_reference_however_the_history_came(
    sampling: SamplingParams, prompt: list[int], before: list[int], after: list[int], pending: list[int]
) -> None:
    row = logits_of(3)[0].numpy()
    state = SamplingRow([*prompt, *before], len(prompt), sampling, frozenset({EOS}), VOCAB)
    state.commit(after)
    edited = row.copy()
    state.edit(edited, pending)
    want = reference_edit(row, sampling, prompt, [*before, *after, *pending])
    np.testing.assert_allclose(edited, want, rtol=1e-5, atol=1e-5)
    if not state.edits_logits:
        np.testing.assert_array_equal(edited, row)


def test_the_sampler_edits_before_it_chooses() -> None:
    logits = logits_of(6)
    best = int(logits.argmax())
    banned = sampler_with({0: (params(temperature=0.0, bad_words=((best,),)), 0)})
    assert one(banned, logits) == int(logits[0].topk(2).indices[1])
    only = sampler_with({0: (params(allowed_token_ids=(12,), top_k=50, top_p=0.9), 0)})
    assert one(only, logits) == 12


def test_min_tokens_bars_the_end_until_enough_are_committed() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS] = 9.0
    sampler = sampler_with({0: (params(temperature=0.0, min_tokens=2), 0)})
    assert one(sampler, logits) != EOS
    sampler.commit(0, [1, 2])
    assert one(sampler, logits) == EOS


def test_ids_beyond_the_models_logits_change_nothing() -> None:
    logits, beyond = logits_of(2), VOCAB + 50
    odd = params(
        temperature=0.0,
        logit_bias={beyond: 100.0},
        allowed_token_ids=(4, beyond),
        bad_words=((beyond,), (1, beyond)),
        stop_token_ids=(beyond,),
        min_tokens=5,
    )
    assert one(sampler_with({0: (odd, 0)}), logits) == 4


def mask_of(*tokens: int) -> np.ndarray:
    bits = np.zeros(-(-VOCAB // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def test_a_mask_leaves_only_its_tokens() -> None:
    sampler = sampler_with({0: (params(temperature=0.0), 0), 1: (params(temperature=0.0), 0)})
    logits = logits_of(8, lines=2)
    tokens = sampler.sample(logits.clone(), np.array([0, 1]), np.array([3, 3]), {1: mask_of(101)}).tokens
    assert tokens == [int(logits[0].argmax()), 101]


@pytest.mark.parametrize(
    ("asked", "mask", "chosen"),
    [
        ({"allowed_token_ids": (12, 13)}, (4, 13), 13),
        ({"allowed_token_ids": (12,)}, (4,), NO_TOKEN),
        ({"bad_words": ((4,),)}, (4, 9), 9),
        ({"bad_words": ((4,),)}, (4,), NO_TOKEN),
        ({"min_tokens": 3}, (4, EOS), 4),
        ({"min_tokens": 3}, (EOS,), EOS),
        ({"allowed_token_ids": (12,)}, (4, EOS), EOS),
        ({"bad_words": ((4,), (EOS,))}, (4, EOS), EOS),
        ({"bad_words": ((4,),), "ignore_eos": True}, (4, EOS), EOS),
    ],
)
def test_what_is_asked_holds_under_a_mask_and_gives_way_to_its_end_alone(
    asked: dict[str, Any], mask: tuple[int, ...], chosen: int
) -> None:
    sampler = sampler_with({0: (params(temperature=0.0, **asked), 0)})
    assert sampler.sample(logits_of(8), np.array([0]), np.array([3]), {0: mask_of(*mask)}).tokens == [chosen]


# Errors of one row


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_token_to_draw_says_so_and_its_neighbours_do_not_notice(
    temperature: float, value: float
) -> None:
    logits = logits_of(9, lines=3)
    sampling = params(temperature=temperature, logprobs=1)
    sampler = sampler_with({row: (sampling, row) for row in range(3)})
    alone = one(sampler, logits[2:], row=2)
    if value == -np.inf:
        logits[1] = value
    else:
        logits[1, 40] = value
    sampled = sampler.sample(logits, np.arange(3), np.array([3, 3, 3]))
    assert (sampled.tokens[1], sampled.tokens[2]) == (NO_TOKEN, alone)
    assert sorted(sampled.logprobs) == [0, 2]


# Log-probabilities


@settings(deadline=None)
@given(seed=st.integers(0, 200), count=st.sampled_from([0, 1, 5, 20, -1, 10**6]))
def test_logprobs_are_those_of_the_raw_distribution(seed: int, count: int) -> None:
    logits = logits_of(seed)
    sampling = params(temperature=0.7, logprobs=count, logit_bias={5: 4.0}, repetition_penalty=1.5)
    sampler = sampler_with({0: (sampling, seed)})
    sampled = sampler.sample(logits.clone(), np.array([0]), np.array([3]))
    want = torch.log_softmax(logits[0].double(), -1).numpy()
    found = sampled.logprobs[0]
    order = np.argsort(-want, kind="stable")[: VOCAB if count < 0 else count]
    assert found.token == sampled.tokens[0]
    assert found.logprob == pytest.approx(want[found.token], abs=1e-5)
    assert found.rank == 1 + int((want > want[found.token]).sum())
    assert [token for token, _ in found.top] == order.tolist()
    np.testing.assert_allclose([logprob for _, logprob in found.top], want[order], atol=1e-5)
    assert dict(found.top).get(found.token, found.logprob) == found.logprob


# Guesses


@settings(max_examples=60, deadline=None)
@given(
    sampling=SAMPLING,
    seed=st.integers(0, 99),
    guesses=st.lists(st.integers(1, 3), max_size=4),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_verified_tokens_are_those_of_one_step_at_a_time(
    sampling: SamplingParams, seed: int, guesses: list[int], temperature: float
) -> None:
    allowed = {"allowed_token_ids": (1, 2, 3), "temperature": temperature, "logprobs": 1}
    sampling = SamplingParams(**{**{name: getattr(sampling, name) for name in sampling.__struct_fields__}, **allowed})
    logits = logits_of(seed, lines=len(guesses) + 1)

    slow = sampler_with({4: (sampling, seed)})
    stepwise: list[int] = []
    for place, line in enumerate(logits):
        token = one(slow, line[None], row=4, position=3 + place)
        stepwise.append(token)
        if token == NO_TOKEN or place == len(guesses) or token != guesses[place]:
            break
        slow.commit(4, [token])

    fast = sampler_with({4: (sampling, seed), 2: (params(), 8)})
    both = torch.cat([logits_of(1), logits])
    verified = fast.verify(both, np.array([2, 4]), np.array([3, 3]), [[], guesses])
    assert verified.tokens[1] == stepwise
    assert len(verified.tokens[0]) == 1
    kept = [entry.token for entry in verified.logprobs.get(1, [])]
    assert kept == [token for token in stepwise if token != NO_TOKEN]
