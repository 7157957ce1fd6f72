"""Sequences whose grammar is not compiled yet wait apart: they block nobody and can leave at any time."""

from concurrent.futures import Future

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, Grammar, SamplingParams
from backends.lm.step import StepOutput
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.frames import NewRequest
from tests.fakes.token_runner import FakeClock, FakeRunner

GRAMMAR = Grammar("regex", "a+")


class GrammarRunner(FakeRunner):
    """Grammars are compiled when the test says so; slices of the numbers in `late` get no token in the next step."""

    def __init__(self, **sizes) -> None:
        super().__init__(**sizes)
        self.compiled: Future[object] = Future()
        self.late = 0

    def prepare(self, sampling):
        return self.compiled

    def step(self, batch) -> StepOutput:
        if not self.late:
            return super().step(batch)
        self.late -= 1
        return StepOutput([[] for _ in batch.rows], postponed=set(range(len(batch.rows))))


class Told:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runner = GrammarRunner(clock=self.clock)
        self.engine = Engine(self.runner, EngineOptions(max_num_seqs=4), clock=self.clock)
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, object] = {}

    def add(self, number: int, grammar: Grammar | None, deadline: float | None = None) -> None:
        sampling = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True, grammar=grammar)
        self.tokens[number] = []
        self.engine.add(NewRequest(number, [3, 4, 5], sampling, 0, self.clock.now, deadline, ""))

    def step(self) -> None:
        frame = self.engine.step()
        self.engine.check()
        for number, event in frame.events:
            self.tokens[number] += event.tokens
            if event.finish is not None:
                self.ends[number] = event.finish
        self.ends |= {number: failure.error() for number, failure in frame.failures}

    def until(self, *numbers: int) -> None:
        while not self.ends.keys() >= set(numbers):
            self.step()


def test_a_request_that_is_being_prepared_blocks_nobody():
    told = Told()
    told.add(1, GRAMMAR)
    told.add(2, None)
    told.until(2)
    assert told.tokens[1] == []
    told.runner.compiled.set_result(None)
    told.until(1)
    assert told.ends == {1: FinishReason.LENGTH, 2: FinishReason.LENGTH}
    assert not told.engine.has_work


def test_a_grammar_that_does_not_compile_ends_its_request():
    told = Told()
    told.add(1, GRAMMAR)
    told.runner.compiled.set_exception(ServingError(Code.INVALID, "no such thing", reason="invalid_json_schema"))
    told.until(1)
    error = told.ends[1]
    assert isinstance(error, ServingError)
    assert (error.code, error.reason) == (Code.INVALID, "invalid_json_schema")


def test_a_deadline_and_an_abort_reach_a_request_that_is_being_prepared():
    told = Told()
    told.add(1, GRAMMAR, deadline=told.clock.now + 1)
    told.add(2, GRAMMAR)
    told.engine.abort(2)
    told.clock.now += 2
    told.until(1)
    error = told.ends[1]
    assert isinstance(error, ServingError)
    assert error.code is Code.DEADLINE
    assert not told.engine.has_work
    told.runner.compiled.set_result(None)
    told.step()
    assert 2 not in told.ends


def test_a_postponed_slice_gets_the_same_tokens_later():
    plain, late = Told(), Told()
    for told in (plain, late):
        told.add(1, None)
    plain.until(1)
    late.step()
    late.runner.late = 2
    late.until(1)
    assert late.tokens == plain.tokens
