"""The token engine: admit, plan, step, commit, emit. One thread, no sockets; forms around it bring requests and take frames."""

import logging
import random
import time
from collections.abc import Callable

from backends.api.errors import Code, ServingError
from backends.api.request import TokenEvent
from backends.lm.step import ModelRunner, StepBatch, StepOutput
from kvcache.blocks import BlockPool
from kvcache.events import EventLog
from kvcache.hashes import root_hash
from scheduler.deadlines import Deadlines
from scheduler.engine_errors import MAX_FAILURES, EngineBrokenError, as_serving_error
from scheduler.engine_options import EngineOptions
from scheduler.engine_totals import Totals
from scheduler.frames import Commands, EngineLimits, Failure, NewRequest, StepFrame
from scheduler.layered_chunk import LayeredChunk
from scheduler.plan import Plan, commit, plan
from scheduler.prefill_budget import Budget
from scheduler.preparing import Preparing
from scheduler.schedule import Schedule
from scheduler.step_batch import step_batch
from scheduler.step_time import StepTimeModel
from scheduler.token_sequence import Slice, TokenSequence

log = logging.getLogger(__name__)

Proposer = Callable[[TokenSequence], list[int]]
"""Guesses the tokens after a sequence's last one; [] where it has no idea."""


class Engine:
    """Owns the schedule and drives a runner. Requests are named by numbers and come checked (`check_request`).

    Each request added ends in exactly one frame: with a finishing event, with a failure, or silently after `abort`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        options: EngineOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        times: StepTimeModel | None = None,
        propose: Proposer | None = None,
        records_events: bool = False,
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._propose = propose
        self._events = EventLog() if records_events else None
        self._chunk = LayeredChunk(runner.layered, clock)
        self._budget = Budget(options.max_num_batched_tokens, options.pace, self._chunk.num_layers)
        self._times = times or StepTimeModel()
        self.schedule = Schedule(
            BlockPool(runner.num_blocks, runner.block_size, self._events),
            options.max_num_seqs,
            runner.max_model_len,
            caches_prefixes=options.enable_prefix_caching,
        )
        self._sequences: dict[int, TokenSequence] = {}
        self._preparing = Preparing()
        self._deadlines: Deadlines[int] = Deadlines()
        self._failures: list[tuple[int, Failure]] = []
        self._seeds = random.SystemRandom() if options.seed is None else random.Random(options.seed)
        self._num_failures = 0  # failed steps in a row
        self._has_failed = False  # the step that is being made
        self._has_news = False  # the schedule changed since the last frame told of it
        self._totals = Totals()

    @property
    def limits(self) -> EngineLimits:
        runner = self._runner
        return EngineLimits(
            runner.max_model_len, runner.num_blocks, runner.block_size, runner.vocab_size, self.schedule.max_num_seqs
        )

    @property
    def has_work(self) -> bool:
        """Whether a step would bring something, if only the news that the last request is gone."""
        return bool(self._sequences or self._failures or self._has_news)

    def apply(self, commands: Commands) -> bool:
        """Do what a client wants. True when the engine shall end."""
        for request in commands.add:
            self.add(request)
        for number in commands.abort:
            self.abort(number)
        if commands.clear_cache:
            self.clear_cache()
        return commands.close

    def add(self, request: NewRequest) -> None:
        seed = request.sampling.seed
        sequence = TokenSequence(
            request.number,
            request.prompt,
            request.sampling,
            seed=self._seeds.getrandbits(63) if seed is None else seed,
            max_len=self.schedule.max_len,
            eos=self._runner.eos_token_ids,
            root=root_hash(self._runner.fingerprint, request.cache_salt),
            priority=request.priority,
            arrived=request.arrived,
            deadline=request.deadline,
        )
        self._sequences[request.number] = sequence
        prepared = self._runner.prepare(request.sampling) if request.sampling.grammar is not None else None
        if prepared is None:
            self.schedule.enqueue(sequence)
        else:
            self._preparing.add(sequence, prepared)
        if request.deadline is not None:
            self._deadlines.add(request.deadline, request.number)

    def abort(self, number: int) -> None:
        """The request is gone before the next step; nothing if it has ended."""
        sequence = self._sequences.get(number)
        if sequence is not None:
            self._drop(sequence)
            self._has_news = True

    def clear_cache(self) -> None:
        """No later request finds a block computed before now."""
        self.schedule.pool.clear()

    def step(self) -> StepFrame:
        """Bring every running request forward. Raises EngineBrokenError after several failed steps in a row."""
        start = self._clock()
        self._expire(start)
        self._take_prepared()
        work = plan(self.schedule, self._budget, self._times, self._chunk.part)
        self._update_rows(work)
        scheduled = [(sequence.number, start) for sequence in work.started if not sequence.scheduled]
        for sequence in work.started:
            sequence.scheduled = sequence.scheduled or start
        tokens_before = self._totals.tokens
        self._has_failed = False
        events = self._run_slices(work) + self._run_layers(work)
        if work.slices or work.layered:
            self._totals.steps += 1
            self._num_failures = self._num_failures + 1 if self._has_failed else 0
        end = self._clock()
        failures, self._failures = self._failures, []
        if self._num_failures >= MAX_FAILURES:
            raise EngineBrokenError(f"{self._num_failures} steps in a row failed")
        self._has_news = False
        kv_events = self._events.drain() if self._events is not None else None
        stats = self._totals.stats(
            self.schedule,
            step_seconds=end - start,
            step_tokens=self._totals.tokens - tokens_before,
            seconds_per_token=self._times.seconds_per_token,
        )
        return StepFrame(end, events, scheduled, failures, stats, kv_events)

    def check(self) -> None:
        """Every law that holds between two steps. Raises AssertionError."""
        self.schedule.check()
        scheduled = {sequence.number for sequence in self.schedule}
        assert scheduled.isdisjoint(self._preparing.numbers)
        assert scheduled | self._preparing.numbers == self._sequences.keys()
        assert self._chunk.part is None or self._chunk.part.sequence in self.schedule.running

    def close(self) -> None:
        if self._chunk.part is not None:
            self._chunk.drop(self._chunk.part.sequence)
        self._runner.close()

    def _expire(self, now: float) -> None:
        for number in self._deadlines.pop_due(now):
            sequence = self._sequences[number]
            state = f"after {sequence.num_generated} tokens" if sequence.scheduled else "while it waited for its turn"
            self._fail(sequence, ServingError(Code.DEADLINE, f"the request's deadline passed {state}"))

    def _take_prepared(self) -> None:
        """Sequences whose grammar is compiled join those that wait; with nothing else to do, waits a moment for one."""
        for sequence, error in self._preparing.take(wait=not len(self.schedule)):
            if error is None:
                self.schedule.enqueue(sequence)
            else:
                self._failures.append((sequence.number, Failure.of(as_serving_error(error))))
                self._forget(sequence)

    def _update_rows(self, work: Plan) -> None:
        """Tell the runner who holds which row. A sequence it cannot take fails alone."""
        for sequence in work.preempted:
            self._chunk.drop(sequence)
            self._runner.remove(sequence.row)
        for sequence in work.started:
            try:
                self._runner.add(sequence.row, sequence.tokens, sequence.num_prompt, sequence.sampling, sequence.seed)
            except Exception as error:
                log.exception("a request could not be prepared")
                work.leave_out(sequence)
                self._fail(sequence, as_serving_error(error), has_row=False)

    def _run_slices(self, work: Plan) -> list[tuple[int, TokenEvent]]:
        """The step itself."""
        if not work.slices:
            return []
        batch = self._batch_of(work.slices)
        start = self._clock()
        output = self._outcome(work.slices, lambda: self._runner.step(batch))
        if output is None:
            return []
        self._times.observe(work.load(), self._clock() - start)
        return self._commit(work.slices, output)

    def _run_layers(self, work: Plan) -> list[tuple[int, TokenEvent]]:
        """The part of the step that takes a chunk through some of the model's layers."""
        part, chunk = work.layered, self._chunk
        if part is None:
            return []
        output = self._outcome([part], lambda: chunk.advance(part, work.layers, self._batch_of))
        if output is None:
            return []
        self._times.observe(chunk.load, chunk.seconds)
        return self._commit([part], output)

    def _batch_of(self, slices: list[Slice]) -> StepBatch:
        return step_batch(slices, self.schedule.table, self.schedule.pool.block_size)

    def _outcome(self, slices: list[Slice], run: Callable[[], StepOutput | None]) -> StepOutput | None:
        """What `run` brings for `slices`. None when it is not done yet, or when it failed and so did their requests."""
        try:
            output = run()
            if output is not None and len(output.tokens) != len(slices):
                raise RuntimeError(f"the runner answered {len(output.tokens)} of {len(slices)} slices")
        except Exception as error:
            log.exception("a step of %d requests failed", len(slices))
            self._has_failed = True
            for part in slices:
                self._fail(part.sequence, as_serving_error(error))
            return None
        return output

    def _commit(self, slices: list[Slice], output: StepOutput) -> list[tuple[int, TokenEvent]]:
        self._totals.add(slices, output)
        events = []
        for sequence, event in commit(self.schedule, slices, output):
            events.append((sequence.number, event))
            self._totals.generation_tokens += len(event.tokens)
            if event.finish is not None:
                self._runner.remove(sequence.row)
                self._forget(sequence)
            elif self._propose is not None and sequence.sampling.grammar is None:
                sequence.drafts = self._propose(sequence)
        for index, error in output.failed.items():
            self._fail(slices[index].sequence, error)
        return events

    def _fail(self, sequence: TokenSequence, error: ServingError, *, has_row: bool = True) -> None:
        self._failures.append((sequence.number, Failure.of(error)))
        self._drop(sequence, has_row=has_row)

    def _drop(self, sequence: TokenSequence, *, has_row: bool = True) -> None:
        self._forget(sequence)
        self._chunk.drop(sequence)
        if self._preparing.discard(sequence):
            return
        is_running = bool(sequence.blocks)
        self.schedule.remove(sequence)
        if is_running and has_row:
            self._runner.remove(sequence.row)

    def _forget(self, sequence: TokenSequence) -> None:
        del self._sequences[sequence.number]
        self._deadlines.discard(sequence.number)
