"""The engine with a fake model: every text is what it is alone, whatever happens around it."""

import random
from itertools import pairwise

import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, SamplingParams, TokenEvent
from backends.lm.step import StepBatch, StepOutput
from kvcache.prefixes import PrefixIndex
from scheduler.engine import Engine
from scheduler.engine_errors import EngineBrokenError
from scheduler.engine_options import EngineOptions
from scheduler.frames import NewRequest, StepFrame
from scheduler.token_sequence import TokenSequence
from tests.fakes.token_runner import FakeClock, FakeRunner, reference_tokens


class Harness:
    """An engine, its clock, and what every request has been told so far."""

    def __init__(self, *, options: EngineOptions | None = None, propose=None, **sizes) -> None:
        self.clock = FakeClock()
        self.runner = FakeRunner(clock=self.clock, **sizes)
        self.engine = Engine(
            self.runner,
            options or EngineOptions(max_num_seqs=8),
            clock=self.clock,
            propose=propose,
            records_events=True,
        )
        self.requests: dict[int, NewRequest] = {}
        self.tokens: dict[int, list[int]] = {}
        self.events: dict[int, list[TokenEvent]] = {}
        self.ended: dict[int, object] = {}

    def add(self, prompt: list[int], max_tokens: int = 8, *, priority=0, deadline=None, salt="", **sampling) -> int:
        number = len(self.requests) + 1
        sampling.setdefault("temperature", 0.0)
        sampling.setdefault("seed", number)
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        request = NewRequest(number, list(prompt), params, priority, self.clock.now, deadline, salt)
        self.requests[number] = request
        self.tokens[number], self.events[number] = [], []
        # The engine appends to the prompt it was given; keep ours.
        self.engine.add(NewRequest(number, list(prompt), params, priority, self.clock.now, deadline, salt))
        return number

    def step(self) -> StepFrame:
        frame = self.engine.step()
        self.engine.check()
        for number, event in frame.events:
            assert number not in self.ended, "an event after the end"
            self.tokens[number] += event.tokens
            self.events[number].append(event)
            if event.finish is not None:
                self.ended[number] = event.finish
        for number, failure in frame.failures:
            assert number not in self.ended, "two ends"
            self.ended[number] = failure
        return frame

    def run(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work
        assert self.engine.schedule.pool.num_free == self.runner.num_blocks
        assert not self.runner.rows

    def expected(self, number: int) -> list[int]:
        request = self.requests[number]
        runner = self.runner
        return reference_tokens(
            request.prompt,
            request.sampling,
            request.sampling.seed,
            max_len=self.engine.schedule.max_len,
            vocab_size=runner.vocab_size,
            eos=runner.eos_token_ids,
        )


def test_a_lone_request_gets_the_models_tokens_and_one_end():
    h = Harness()
    number = h.add([5, 6, 7], max_tokens=6, ignore_eos=True)
    h.run()
    assert h.tokens[number] == h.expected(number)
    assert len(h.tokens[number]) == 6
    assert h.ended[number] is FinishReason.LENGTH
    assert [event.finish for event in h.events[number]].count(None) == 5


def guess_well(runner: FakeRunner, max_len: int, rng: random.Random):
    """A proposer that looks the answer up and gets it wrong now and then."""

    def propose(sequence: TokenSequence) -> list[int]:
        answer = reference_tokens(
            sequence.tokens[: sequence.num_prompt],
            sequence.sampling,
            sequence.seed,
            max_len=max_len,
            vocab_size=runner.vocab_size,
            eos=runner.eos_token_ids,
        )
        guess = answer[sequence.num_generated : sequence.num_generated + rng.randrange(5)]
        return [token if rng.random() < 0.8 else (token + 1) % runner.vocab_size for token in guess]

    return propose


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("num_layers", [1, 5])
def test_whatever_happens_around_it_every_text_is_what_it_is_alone(seed, drafts, num_layers):
    rng = random.Random(seed)
    options = EngineOptions(
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice([8, 16, 64]) if num_layers == 1 else 64,
        itl_target_ms=0 if num_layers == 1 else 1,  # no time for a chunk as a whole
    )
    num_blocks = rng.choice([14, 24, 40] if num_layers == 1 else [24, 40])  # the longest prompt fits
    sizes = {"num_blocks": num_blocks, "block_size": 4, "max_model_len": 100}
    h = Harness(options=options, num_layers=num_layers, **sizes)
    if drafts:
        h.engine._propose = guess_well(h.runner, h.engine.schedule.max_len, rng)
    longest = 24 if num_layers == 1 else 60
    shared = [[rng.randrange(97) for _ in range(rng.randrange(4, longest))] for _ in range(3)]
    aborted = set()
    for _ in range(500):
        if rng.random() < 0.35 and len(h.engine.schedule) < 20:
            prompt = rng.choice([[], *shared]) + [rng.randrange(97) for _ in range(rng.randrange(1, 20))]
            h.add(
                prompt,
                rng.randrange(1, 40),
                priority=rng.choice([0, 0, 1, -1]),
                deadline=h.clock.now + rng.random() if rng.random() < 0.1 else None,
                salt=rng.choice(["", "", "tenant"]),
                temperature=rng.choice([0.0, 1.0]),
                min_tokens=rng.choice([0, 2]),
                ignore_eos=rng.random() < 0.3,
                stop_token_ids=(rng.randrange(97),),
                logprobs=rng.choice([None, 1]),
                prompt_logprobs=rng.choice([None, None, 0]),
            )
        if rng.random() < 0.05 and h.engine._sequences:
            victim = rng.choice(list(h.engine._sequences))
            h.engine.abort(victim)
            h.engine.check()
            aborted.add(victim)
        if rng.random() < 0.01:
            h.engine.clear_cache()
        if h.engine.has_work:
            h.step()
    h.run()
    assert set(h.requests) == set(h.ended) | aborted
    assert not set(h.ended) & aborted
    for number, tokens in h.tokens.items():
        expected = h.expected(number)
        assert tokens == expected[: len(tokens)]
        if isinstance(h.ended.get(number), FinishReason):
            assert tokens == expected
    assert h.engine.schedule.num_preemptions > 0
    assert h.engine.schedule.num_cache_hits > 0
    answered = [len(h.requests[number].prompt) for number, tokens in h.tokens.items() if tokens]
    assert h.engine._totals.prompt_tokens == sum(answered)
    if num_layers > 1:
        assert h.runner.layered.num_chunks > 0


def test_every_answer_is_the_same_alone_and_in_company_with_seeds():
    h = Harness(num_blocks=200)
    numbers = [h.add([5, 6, 7], 12, temperature=1.0, seed=3) for _ in range(3)] + [h.add([5, 6, 7], 12, seed=4)]
    h.run()
    assert h.tokens[1] == h.tokens[2] == h.tokens[3] == h.expected(1)
    assert h.tokens[4] != h.tokens[1]
    assert {h.events[number][0].num_cached for number in numbers} == {0}


def test_seeds_are_drawn_where_none_is_given_and_repeat_with_the_engines_seed():
    def text(seed: int | None) -> list[list[int]]:
        h = Harness(options=EngineOptions(max_num_seqs=8, seed=seed))
        for _ in range(2):
            h.add([5, 6, 7], 12, temperature=1.0, seed=None, ignore_eos=True)
        h.run()
        return list(h.tokens.values())

    one, two = text(1)
    assert one != two
    assert text(1) == [one, two]
    assert text(None) != text(None)


def test_streams_keep_their_pace_while_the_longest_prompt_is_computed():
    def gaps(with_prompt: bool) -> list[float]:
        """Times between the tokens of four streams, the prompt coming in the middle."""
        options = EngineOptions(max_num_seqs=8, max_num_batched_tokens=2048)
        h = Harness(options=options, num_blocks=1000, block_size=16, max_model_len=8192, num_layers=30)
        streams = [h.add([number], 300, ignore_eos=True) for number in range(1, 5)]
        times = []
        while set(streams) - set(h.ended):
            if with_prompt and len(times) == 100:
                h.add([7] * 4000, 1)
            times.append(h.step().time)
        return sorted(after - before for before, after in pairwise(times))

    alone, beside = gaps(False), gaps(True)
    assert len(beside) == len(alone)
    assert beside[int(len(beside) * 0.99)] <= 2.1 * alone[int(len(alone) * 0.99)]


def test_an_aborted_request_is_gone_within_one_step():
    h = Harness()
    number = h.add([1, 2, 3], 100, ignore_eos=True)
    h.step()
    h.engine.abort(number)
    h.engine.check()
    assert h.engine.schedule.pool.num_free == h.runner.num_blocks
    stats = h.engine.step().stats  # though nothing is left to compute, whoever keeps count is told
    assert (stats.num_running, stats.num_free_blocks) == (0, h.runner.num_blocks)
    assert not h.engine.has_work
    h.engine.abort(number)  # once more does no harm
    assert not h.engine.has_work


def test_a_deadline_ends_a_request_that_waits_and_one_that_runs():
    h = Harness(options=EngineOptions(max_num_seqs=1))
    runs = h.add([1, 2], 200, ignore_eos=True, deadline=h.clock.now + 0.1)
    waits = h.add([3, 4], 200, ignore_eos=True, deadline=h.clock.now + 0.05)
    in_time = h.add([5, 6], 2, deadline=h.clock.now + 100)
    h.run()
    assert h.ended[runs].code == h.ended[waits].code == "deadline"
    assert "while it waited" in h.ended[waits].message
    assert f"after {len(h.tokens[runs])} tokens" in h.ended[runs].message
    assert h.tokens[in_time] == h.expected(in_time)


def test_a_failed_step_fails_its_requests_and_not_those_that_wait():
    h = Harness(options=EngineOptions(max_num_seqs=2))
    numbers = [h.add([number, 2], 5) for number in range(1, 5)]
    h.runner.fail_next = RuntimeError("secret address 0xdeadbeef")
    h.step()
    assert [h.ended[number].code for number in numbers[:2]] == ["internal"] * 2
    assert "0xdeadbeef" not in h.ended[numbers[0]].message
    h.run()
    assert all(h.tokens[number] == h.expected(number) for number in numbers[2:])


PROMPT = list(range(1, 60))


def beside_a_stream() -> tuple[Harness, int, int]:
    """An engine with a stream and a prompt that is on its way through the layers; their numbers."""
    h = Harness(options=EngineOptions(max_num_seqs=4, itl_target_ms=1), num_layers=30)
    stream = h.add([1], 60, ignore_eos=True)
    h.step()
    prompt = h.add(PROMPT, 3, ignore_eos=True)
    h.step()
    assert h.runner.layered.is_busy
    return h, stream, prompt


def test_a_chunk_in_the_layers_is_given_up_with_its_request():
    h, stream, prompt = beside_a_stream()
    h.engine.abort(prompt)
    assert not h.runner.layered.is_busy
    again = h.add(PROMPT, 3, ignore_eos=True)
    h.run()
    assert h.tokens[stream] == h.expected(stream)
    assert h.tokens[again] == h.expected(again)


def test_a_chunk_that_fails_in_the_layers_fails_its_request_alone():
    h, stream, prompt = beside_a_stream()
    h.runner.layered.fail_next = RuntimeError("no memory")
    h.run()
    assert h.ended[prompt].code == "internal"
    assert h.tokens[stream] == h.expected(stream)


def test_a_chunk_in_the_layers_is_done_at_once_when_no_stream_is_left():
    h, stream, prompt = beside_a_stream()
    h.engine.abort(stream)
    h.step()
    assert not h.runner.layered.is_busy
    h.run()
    assert h.tokens[prompt] == h.expected(prompt)


@pytest.mark.parametrize("length", [1, 2, 8, 9, 31])
def test_a_short_prompt_is_run_as_a_whole_whatever_the_pace(length):
    h, _, prompt = beside_a_stream()
    h.engine.abort(prompt)
    short = h.add([7] * length, 1)
    steps = 0
    while short not in h.ended:
        h.step()
        steps += 1
    assert steps <= -(-length // 8)
    assert h.tokens[short] == h.expected(short)
    h.run()


def test_a_prompt_found_in_the_cache_but_for_its_last_token_is_run_as_a_whole():
    h = Harness(num_blocks=3000, block_size=16, max_model_len=8192, num_layers=30)
    prompt = [number % 90 + 1 for number in range(7201)]
    h.add(prompt, 1)
    h.run()
    h.add([1], 200, ignore_eos=True)
    for _ in range(5):
        h.step()
    again = h.add(prompt, 1)
    h.step()
    assert h.events[again][0].num_cached == 7200


@pytest.mark.parametrize("target", [1, 5])
def test_a_target_that_the_streams_alone_miss_starves_no_prompt(target):
    options = EngineOptions(max_num_seqs=8, itl_target_ms=target)
    h = Harness(options=options, num_blocks=2000, block_size=16, max_model_len=8192, num_layers=30)
    for number in range(1, 5):
        h.add([number], 8000, ignore_eos=True)
    h.step()
    prompt = h.add([7] * 2000, 1)
    for _ in range(2000):
        h.step()
        if prompt in h.ended:
            break
    assert h.tokens[prompt] == h.expected(prompt)


def test_a_more_important_prompt_goes_before_a_chunk_in_the_layers():
    h, _, prompt = beside_a_stream()
    urgent = h.add([5, 6, 7], 1, priority=-1)
    h.step()
    assert urgent in h.ended
    assert h.runner.layered.is_busy
    h.run()
    assert h.tokens[prompt] == h.expected(prompt)


def test_a_more_important_prompt_that_needs_the_layers_has_them_next():
    h, _, prompt = beside_a_stream()
    urgent = h.add([5] * 50, 1, priority=-1, ignore_eos=True)
    longest = 0.0
    while urgent not in h.ended:
        before = h.clock.now
        h.step()
        longest = max(longest, h.clock.now - before)
    assert h.runner.layered.num_chunks > 1
    assert longest < 0.005 + 8 * 0.0005 + 0.005  # a step of the stream, and less than eight tokens as a whole take
    h.run()
    assert h.tokens[urgent] == h.expected(urgent)
    assert h.tokens[prompt] == h.expected(prompt)


def test_a_request_the_runner_cannot_take_fails_alone():
    h = Harness()
    h.runner.fails_add = ServingError(Code.INVALID, "no such grammar", param="grammar")
    bad, good = h.add([1, 2]), h.add([3, 4])
    h.run()
    assert (h.ended[bad].code, h.ended[bad].param) == ("invalid", "grammar")
    assert h.tokens[good] == h.expected(good)


def test_a_sequence_for_which_no_token_can_be_chosen_fails_alone():
    h = Harness()
    bad, good = h.add([1, 2]), h.add([3, 4])
    answer = h.runner.step

    def step(batch: StepBatch) -> StepOutput:
        output = answer(batch)
        output.tokens[0] = []
        output.failed[0] = ServingError(Code.INTERNAL, "no token is allowed")
        h.runner.step = answer
        return output

    h.runner.step = step
    h.run()
    assert h.ended[bad].message == "no token is allowed"
    assert h.tokens[good] == h.expected(good)


def test_a_runner_that_answers_for_too_few_slices_is_an_error_for_all():
    h = Harness()
    numbers = [h.add([1, 2]), h.add([3, 4])]
    answer = h.runner.step
    h.runner.step = lambda batch: StepOutput(answer(batch).tokens[:1])
    h.step()
    assert [h.ended[number].code for number in numbers] == ["internal"] * 2


def test_what_can_grow_past_the_pool_ends_by_length():
    h = Harness(num_blocks=6, block_size=4, max_model_len=100)
    number = h.add([1] * 10, 90, ignore_eos=True)
    h.run()
    assert h.ended[number] is FinishReason.LENGTH
    assert len(h.tokens[number]) == 14


def test_first_event_tells_cached_tokens_and_prompt_logprobs():
    h = Harness(options=EngineOptions(max_num_seqs=8, max_num_batched_tokens=8))
    prompt = [number % 90 for number in range(1, 22)]
    h.add(prompt, 1)
    h.run()
    cached, asked = h.add(prompt, 3, ignore_eos=True), h.add(prompt, 3, prompt_logprobs=0, logprobs=0, ignore_eos=True)
    h.run()
    assert [event.num_cached for event in h.events[cached]] == [20, 0, 0]
    first, *rest = h.events[asked]
    assert first.num_cached == 0
    assert first.prompt_logprobs[0] is None
    assert [entry.token for entry in first.prompt_logprobs[1:]] == prompt[1:]
    assert all(event.prompt_logprobs is None and len(event.logprobs) == 1 for event in rest)


def test_prompt_logprobs_are_whole_after_a_preemption_in_the_prompt():
    h = Harness(options=EngineOptions(max_num_seqs=8, max_num_batched_tokens=8))
    prompt = list(range(1, 22))
    number = h.add(prompt, 3, prompt_logprobs=0)
    h.step()
    sequence = h.engine._sequences[number]
    h.engine.schedule.preempt(sequence)
    h.runner.remove(sequence.row)
    h.run()
    assert [entry.token for entry in h.events[number][0].prompt_logprobs[1:]] == prompt[1:]


def test_tenants_with_different_salts_share_nothing():
    h = Harness()
    prompt = list(range(1, 22))
    for salt, cached in (("a", 0), ("a", 20), ("b", 0), ("", 0), ("", 20)):
        number = h.add(prompt, 2, salt=salt)
        h.run()
        assert h.events[number][0].num_cached == cached


def test_after_clearing_the_cache_nothing_is_found_and_texts_stay():
    h = Harness()
    prompt = list(range(1, 22))
    h.add(prompt, 20)
    h.step()
    h.engine.clear_cache()
    number = h.add(prompt, 20)
    h.run()
    assert h.events[number][0].num_cached == 0
    assert h.tokens[number] == h.tokens[1] == h.expected(1)


def test_statistics_count_what_clients_got():
    h = Harness()
    for _ in range(3):
        h.add(list(range(1, 10)), 5, ignore_eos=True)
        h.run()
    h.add([1], 5, ignore_eos=True)
    frame = h.step()
    stats = frame.stats
    assert stats.num_generation_tokens_total == sum(map(len, h.tokens.values()))
    assert stats.num_cache_queries_total == 28
    assert stats.num_cache_hits_total == 16
    assert stats.num_prompt_tokens_total == 9 + 9 + 9 + 1
    assert (stats.num_running, stats.num_waiting, stats.step_tokens) == (1, 0, 1)
    assert stats.num_free_blocks == stats.num_blocks - 1
    assert stats.step_seconds == pytest.approx(h.clock.now - frame.scheduled[0][1])


def test_block_events_describe_what_a_new_request_would_find():
    h = Harness(num_blocks=12)
    index = PrefixIndex()
    for turn in range(30):
        h.add([turn % 4] * 9, 6)
        while h.engine.has_work:
            batch = h.step().kv_events
            assert batch is None or index.apply(0, batch)
    pool = h.engine.schedule.pool
    assert len(index) == pool.num_cached > 0


def test_repeated_failures_break_the_engine():
    h = Harness()
    for _ in range(2):
        number = h.add([1, 2])
        h.runner.fail_next = ValueError("boom")
        h.step()
        assert h.ended[number].code == "internal"
    h.add([1, 2])
    h.runner.fail_next = ValueError("boom")
    with pytest.raises(EngineBrokenError):
        h.step()
