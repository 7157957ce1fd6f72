"""The rules of the plan, one by one, and its laws on random states."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.api.request import FinishReason, SamplingParams
from backends.lm.step import StepOutput
from kvcache.blocks import BlockPool
from scheduler.pace import Pace
from scheduler.plan import Plan, commit, plan
from scheduler.prefill_budget import Budget
from scheduler.schedule import Schedule
from scheduler.step_time import StepLoad, StepTimeModel
from scheduler.token_sequence import TokenSequence

FREE_PACE = Pace(itl_target=1e9)  # time is no limit


class Bench:
    """A schedule that is planned and committed by hand; every sampled token is 1."""

    def __init__(self, num_blocks=100, block_size=4, max_num_seqs=8, max_len=400, budget=64, pace=FREE_PACE, **kwargs):
        self.schedule = Schedule(BlockPool(num_blocks, block_size), max_num_seqs, max_len, **kwargs)
        self.budget = Budget(budget, pace)
        self.times = StepTimeModel()
        self.count = 0

    def add(self, prompt, max_tokens=50, priority=0, stops=(), eos=frozenset(), **sampling) -> TokenSequence:
        self.count += 1
        prompt = list(range(2, 2 + prompt)) if isinstance(prompt, int) else prompt
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stops, **sampling)
        sequence = TokenSequence(
            self.count,
            prompt,
            params,
            seed=0,
            max_len=self.schedule.max_len,
            priority=priority,
            arrived=float(self.count),
            eos=eos,
        )
        self.schedule.enqueue(sequence)
        return sequence

    def plan(self) -> Plan:
        result = plan(self.schedule, self.budget, self.times)
        assert result.load().tokens == sum(part.count for part in result.slices) <= self.budget.max_tokens
        return result

    def commit(self, result: Plan, tokens: dict[TokenSequence, list[int]] | None = None):
        output = [(tokens or {}).get(part.sequence, [1]) if part.samples else [] for part in result.slices]
        events = commit(self.schedule, result.slices, StepOutput(output))
        self.schedule.check()
        return events

    def step(self, **kwargs) -> dict[int, int]:
        """Sequence number -> tokens computed for it."""
        result = self.plan()
        self.commit(result, **kwargs)
        return {part.sequence.number: part.count for part in result.slices}


def test_a_long_prompt_is_computed_in_chunks_and_samples_once_at_its_end():
    bench = Bench(budget=10)
    sequence = bench.add(25)
    samples = []
    for _ in range(3):
        result = bench.plan()
        samples.append(result.slices[0].samples)
        bench.commit(result)
    assert samples == [False, False, True]
    assert sequence.num_generated == 1


def test_running_sequences_come_before_a_prompt_and_are_never_starved_by_it():
    bench = Bench(budget=12)
    one, two = bench.add(3), bench.add(4)
    bench.step()
    three = bench.add(30)
    assert bench.step() == {one.number: 1, two.number: 1, three.number: 10}
    assert bench.step() == {one.number: 1, two.number: 1, three.number: 10}


def test_an_older_unfinished_prompt_does_not_starve_streams_behind_it():
    bench = Bench(budget=10)
    long, short = bench.add(100), bench.add(2, priority=-1)
    bench.step()
    assert bench.step() == {short.number: 1, long.number: 9}


def test_waiting_goes_by_priority_then_arrival():
    bench = Bench(max_num_seqs=2)
    first, _second, urgent = bench.add(3), bench.add(3), bench.add(3, priority=-1)
    assert list(bench.step()) == [urgent.number, first.number]


def test_a_cached_prompt_still_computes_its_last_token():
    bench = Bench()
    bench.add(8, max_tokens=1)
    bench.step()
    twin = bench.add(8)
    assert bench.step() == {twin.number: 4}
    assert twin.num_cached == 4
    longer = bench.add(9)
    assert bench.step()[longer.number] == 1
    assert longer.num_cached == 8


def test_without_prefix_caching_everything_is_computed():
    bench = Bench(caches_prefixes=False)
    bench.add(8, max_tokens=1)
    bench.step()
    assert bench.step() == {}
    twin = bench.add(8)
    assert bench.step() == {twin.number: 8}


def test_a_prompt_whose_blocks_are_just_being_computed_waits_for_them():
    bench = Bench(budget=20)
    leader = bench.add(40, max_tokens=2)
    followers = [bench.add(40, max_tokens=2) for _ in range(3)]
    other = bench.add([9] * 3)
    assert bench.step() == {leader.number: 20}
    assert bench.step() == {leader.number: 20}
    # 36 of 40 tokens are cached for each: the last token's block is computed anew.
    assert bench.step() == {leader.number: 1} | {each.number: 4 for each in followers} | {other.number: 3}
    assert all(each.num_cached == 36 for each in followers)


def test_a_follower_goes_on_by_itself_when_its_leader_is_gone():
    bench = Bench(budget=20)
    leader, follower = bench.add(40), bench.add(40)
    bench.step()
    bench.schedule.remove(leader)
    assert bench.step() == {follower.number: 20}
    assert follower.num_cached == 20


def test_a_request_for_prompt_logprobs_reads_nothing_from_the_cache():
    bench = Bench()
    bench.add(9, max_tokens=1)
    bench.step()
    asks = bench.add(9, prompt_logprobs=0)
    assert bench.step() == {asks.number: 9}
    assert bench.schedule.num_cache_queries == 9


def test_a_prompt_starts_only_when_all_of_it_fits():
    bench = Bench(num_blocks=10, budget=8)
    one = bench.add(16)
    bench.step()
    big = bench.add([7] * 30)
    small = bench.add([8] * 4)
    # 6 blocks are free and big needs 8: it keeps its place, and small does not overtake it
    assert bench.step() == {one.number: 8}
    assert bench.schedule.waiting == [big, small]


def test_the_newest_of_the_lowest_priority_is_preempted():
    bench = Bench(num_blocks=7, max_len=28)
    bench.schedule.headroom = 0
    old, urgent, new = bench.add([2] * 7), bench.add([3] * 7, priority=-1), bench.add([4] * 7)
    while not bench.schedule.num_preemptions:
        result = bench.plan()
        bench.commit(result)
        bench.schedule.headroom = 0
    assert result.preempted == [new]
    assert new.num_generated > 0
    assert not new.blocks
    assert bench.schedule.running == [urgent, old]


def test_a_step_that_preempts_lets_nobody_in():
    bench = Bench(num_blocks=7, max_len=28, budget=100)
    bench.schedule.headroom = 0
    for token in range(2, 5):
        bench.add([token] * 7)
    bench.step()
    bench.add([9], priority=5)
    while True:
        bench.schedule.headroom = 0
        result = bench.plan()
        bench.commit(result)
        if result.preempted:
            assert not result.started
            break


def test_two_that_do_not_fit_together_take_turns_instead_of_swapping_for_ever():
    bench = Bench(num_blocks=10, max_len=40)
    for token in range(2, 8):
        bench.add([token] * 8, max_tokens=30)
    for _ in range(400):
        bench.step()
        if not len(bench.schedule):
            break
    assert not len(bench.schedule)
    assert bench.schedule.num_preemptions < 12


def test_recomputed_tokens_are_not_hits():
    bench = Bench()
    sequence = bench.add(9)
    bench.step()
    bench.schedule.preempt(sequence)
    bench.step()
    assert sequence.num_cached == 0
    assert (bench.schedule.num_cache_queries, bench.schedule.num_cache_hits) == (9, 0)


def test_accepted_drafts_are_kept_and_rejected_ones_computed_again():
    bench = Bench()
    sequence = bench.add(5)
    bench.step()
    sequence.drafts = [11, 12, 13]
    result = bench.plan()
    assert [(part.count, part.num_drafts) for part in result.slices] == [(4, 3)]
    assert result.slices[0].tokens() == [1, 11, 12, 13]
    ((_, event),) = bench.commit(result, {sequence: [11, 99]})
    assert event.tokens == [11, 99]
    assert len(sequence.tokens) - sequence.computed == 1
    assert sequence.drafts == []


def test_what_was_accepted_beyond_a_stop_is_cut():
    bench = Bench()
    sequence = bench.add(5, stops=(12,))
    bench.step()
    sequence.drafts = [11, 12, 13]
    ((_, event),) = bench.commit(bench.plan(), {sequence: [11, 12, 13, 14]})
    assert event.tokens == [11, 12]
    assert (event.finish, event.stop_token) == (FinishReason.STOP, 12)
    assert bench.schedule.pool.num_free == bench.schedule.pool.num_blocks


def test_drafts_never_go_past_the_end_and_never_preempt():
    bench = Bench()
    short = bench.add(5, max_tokens=3)
    bench.step()
    short.drafts = [11] * 9
    assert [part.num_drafts for part in bench.plan().slices] == [1]
    tight = Bench(num_blocks=2, max_len=8)
    sequence = tight.add(6)
    tight.step()
    sequence.drafts = [11] * 9
    result = tight.plan()
    assert not result.preempted
    assert [part.num_drafts for part in result.slices] == [0]


@pytest.mark.parametrize(
    ("generated", "finish", "stop_token"),
    [
        ([7], FinishReason.STOP, None),
        ([8], FinishReason.STOP, 8),
        ([5, 5, 5, 5], FinishReason.LENGTH, None),
        ([5, 5, 5, 7], FinishReason.STOP, None),
    ],
)
def test_stop_order(generated, finish, stop_token):
    sequence = TokenSequence(
        1, [1, 2], SamplingParams(max_tokens=4, stop_token_ids=(8,)), seed=0, max_len=100, eos=frozenset({7})
    )
    reasons = [sequence.append(token) for token in generated]
    assert reasons[:-1] == [None] * (len(generated) - 1)
    assert reasons[-1] is finish
    assert sequence.stop_token(reasons[-1]) == stop_token


def test_before_min_tokens_only_length_ends():
    params = SamplingParams(max_tokens=9, min_tokens=3, stop_token_ids=(8,))
    sequence = TokenSequence(1, [1, 2], params, seed=0, max_len=100, eos=frozenset({7}))
    assert [sequence.append(token) for token in (7, 8, 8)] == [None, None, FinishReason.STOP]
    full = TokenSequence(1, [1, 2], params, seed=0, max_len=3)
    assert full.append(5) is FinishReason.LENGTH


def test_ignore_eos_goes_on():
    sequence = TokenSequence(
        1, [1], SamplingParams(max_tokens=3, ignore_eos=True), seed=0, max_len=100, eos=frozenset({7})
    )
    assert [sequence.append(7) for _ in range(3)] == [None, None, FinishReason.LENGTH]


def test_prefill_beside_streams_is_sized_by_time_and_never_starves():
    bench = Bench(budget=2048, max_len=3000, num_blocks=2000, pace=Pace(min_chunk=16))
    stream = bench.add(4)
    bench.step()
    for _ in range(20):  # a machine of 10 ms and 1 ms a token
        bench.times.observe(StepLoad(1, 0, 10), 0.011)
        bench.times.observe(StepLoad(101, 5000, 10), 0.111)
        bench.times.observe(StepLoad(301, 45000, 10), 0.311)
    prompt = bench.add([7] * 2000)
    chunk = bench.step()[prompt.number]
    assert chunk == 16  # 11 tokens would double the step, 16 is the least
    bench.schedule.remove(stream)
    assert bench.step()[prompt.number] == pytest.approx(240, abs=20)  # alone: as much as 0.25 s hold


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 12), st.integers(-1, 1)),
        st.tuples(st.just("step")),
        st.tuples(st.just("abort"), st.integers(0, 20)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(ACTIONS, st.integers(8, 20), st.integers(4, 40), st.integers(1, 4), st.booleans())
def test_every_sequence_ends_and_budgets_hold(actions, num_blocks, budget, max_num_seqs, caches):
    bench = Bench(num_blocks, 4, max_num_seqs, max_len=50, budget=budget, pace=Pace(), caches_prefixes=caches)
    for action, *values in actions:
        if action == "add":
            length, max_tokens, priority = values
            if length < bench.schedule.max_len:
                bench.add(length, max_tokens, priority)
        elif action == "abort" and len(bench.schedule):
            sequences = list(bench.schedule)
            bench.schedule.remove(sequences[values[0] % len(sequences)])
        elif len(bench.schedule):
            assert bench.step(), "work, but an empty step"
        bench.schedule.check()
        assert len(bench.schedule.running) <= max_num_seqs
    for _ in range(2000):
        if not len(bench.schedule):
            break
        assert bench.step()
    assert not len(bench.schedule)
    assert bench.schedule.pool.num_free == num_blocks
    assert not bench.schedule.coming
