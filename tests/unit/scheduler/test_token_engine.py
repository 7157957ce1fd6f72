"""The engine with a fake model: every text is what it is alone, whatever happens around it."""

import random

import pytest

from backends.api.request import FinishReason, SamplingParams, TokenEvent
from scheduler.engine import Engine, EngineBrokenError
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
def test_whatever_happens_around_it_every_text_is_what_it_is_alone(seed, drafts):
    rng = random.Random(seed)
    options = EngineOptions(max_num_seqs=6, max_num_batched_tokens=rng.choice([8, 16, 64]))
    h = Harness(options=options, num_blocks=rng.choice([14, 24, 40]), block_size=4, max_model_len=100)
    if drafts:
        h.engine._propose = guess_well(h.runner, h.engine.schedule.max_len, rng)
    shared = [[rng.randrange(97) for _ in range(rng.randrange(4, 24))] for _ in range(3)]
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
