"""Which tokens form the next step, and what its outcome means for the sequences. No clock, no device."""

from dataclasses import dataclass, field
from math import inf

from backends.api.request import FinishReason, TokenEvent, TokenLogprobs
from backends.lm.step import StepOutput
from scheduler.prefill_budget import Budget, Portion, PrefillBudget, prefill_budget
from scheduler.schedule import Schedule
from scheduler.step_time import StepLoad, StepTimeModel
from scheduler.token_sequence import Slice, TokenSequence


@dataclass(slots=True)
class Plan:
    """One step. `started` took a row, `preempted` gave one back (it stands in `row` until they start again).

    No sequence is in both: a step that preempts lets nobody in. Apart from `slices`, the chunk `layered` goes through
    so many `layers` more.
    """

    slices: list[Slice] = field(default_factory=list)
    layered: Slice | None = None
    layers: int = 0
    started: list[TokenSequence] = field(default_factory=list)
    preempted: list[TokenSequence] = field(default_factory=list)

    def prefill(self, sequence: TokenSequence, portion: Portion) -> None:
        if not portion.count:
            return
        part = Slice(sequence, portion.count)
        if portion.layers is None:
            self.slices.append(part)
        else:
            self.layered, self.layers = part, portion.layers

    def leave_out(self, sequence: TokenSequence) -> None:
        self.slices = [part for part in self.slices if part.sequence is not sequence]
        if self.layered is not None and self.layered.sequence is sequence:
            self.layered = None

    def load(self) -> StepLoad:
        """Of `slices`, before their commit."""
        load = StepLoad()
        for part in self.slices:
            add = load.add_chunk if part.count - part.num_drafts > 1 else load.add_decode
            add(part.count, part.sequence.computed + part.count)
        return load


def plan(schedule: Schedule, budget: Budget, times: StepTimeModel, under_way: Slice | None = None) -> Plan:
    """The next step: every running sequence moves on, then as many waiting ones start as fit.

    Sequences with one token to compute (and its drafts) come first in the budget; what is left of it, in tokens and
    in time, goes to prefill in order of importance. A chunk `under_way` through the layers takes all that more
    important prompts leave. When blocks run out, the least important running sequence is preempted, which is never one
    that is already planned.
    """
    result = Plan()
    prefill = prefill_budget(schedule, budget, times)
    drafts = budget.max_tokens - len(schedule.running) - (budget.pace.min_chunk if prefill.is_wanted else 0)
    running, block_size, index = schedule.running, schedule.pool.block_size, 0
    while index < len(running):
        sequence = running[index]
        if len(sequence.tokens) - sequence.computed > 1:  # its blocks are its own since it started
            if not _gives_way(schedule, sequence, prefill, under_way):
                result.prefill(sequence, _portion(sequence, prefill, under_way))
        else:
            num_drafts = _num_drafts(schedule, sequence, drafts) if sequence.drafts else 0
            drafts -= num_drafts
            prefill.spend_on_drafts(num_drafts)
            end = sequence.computed + 1 + num_drafts
            if end > len(sequence.blocks) * block_size and not _make_room(schedule, sequence, end, result.preempted):
                break  # it was the least important itself
            result.slices.append(Slice(sequence, 1 + num_drafts, num_drafts))
        index += 1
    if schedule.waiting and not result.preempted:
        _start_waiting(schedule, prefill, result, may_spread=under_way is None)
    schedule.relax()
    return result


def commit(schedule: Schedule, slices: list[Slice], output: StepOutput) -> list[tuple[TokenSequence, TokenEvent]]:
    """Move the sequences on by what the step brought. Those that end leave the schedule.

    Returns what to tell: each sequence that has new tokens, with its event.
    """
    events = []
    block_size = schedule.pool.block_size if schedule.caches_prefixes else inf
    for index, (part, tokens) in enumerate(zip(slices, output.tokens, strict=True)):
        sequence = part.sequence
        if output.failed and index in output.failed:
            continue  # the engine ends it
        sequence.computed += part.count - (1 if index in output.postponed else 0)
        if output.prompt_logprobs and index in output.prompt_logprobs and not sequence.has_answered:
            sequence.prompt_logprobs += output.prompt_logprobs[index]
        finish = None
        if tokens:
            if part.num_drafts:
                sequence.computed -= part.num_drafts - (len(tokens) - 1)
                sequence.drafts = []
            for used, token in enumerate(tokens, 1):
                finish = sequence.append(token)
                if finish is not None:
                    tokens = tokens[:used]
                    break
            logprobs = output.logprobs.get(index) if output.logprobs else None
            events.append((sequence, _event(sequence, tokens, logprobs and logprobs[: len(tokens)], finish)))
        if sequence.computed >= (sequence.num_named + 1) * block_size:
            schedule.name_blocks(sequence)
        if finish is not None:
            schedule.remove(sequence)
    return events


def _event(
    sequence: TokenSequence, tokens: list[int], logprobs: list[TokenLogprobs] | None, finish: FinishReason | None
) -> TokenEvent:
    event = TokenEvent(tokens, logprobs, finish)
    if finish is not None:
        event.stop_token = sequence.stop_token(finish)
    if not sequence.has_answered:
        sequence.has_answered = True
        event.num_cached = sequence.num_cached
        if sequence.sampling.prompt_logprobs is not None:
            event.prompt_logprobs = sequence.prompt_logprobs
            sequence.prompt_logprobs = []
    return event


def _num_drafts(schedule: Schedule, sequence: TokenSequence, left: int) -> int:
    """How many of its drafts may be tried: never past its end, and never at the price of a preemption."""
    length = len(sequence.tokens)
    count = max(min(len(sequence.drafts), left, sequence.max_len - length - 1), 0)
    room = (len(sequence.blocks) + schedule.pool.num_free) * schedule.pool.block_size - length
    return min(count, max(room, 0))


def _make_room(schedule: Schedule, sequence: TokenSequence, length: int, preempted: list[TokenSequence]) -> bool:
    """Blocks for `length` tokens of a running sequence. False if it had to be preempted itself."""
    while schedule.num_blocks_for(length) - len(sequence.blocks) > schedule.pool.num_free:
        victim = schedule.running[-1]
        schedule.preempt(victim)
        preempted.append(victim)
        if victim is sequence:
            return False
    schedule.grow(sequence, length)
    return True


def _portion(sequence: TokenSequence, prefill: PrefillBudget, under_way: Slice | None) -> Portion:
    """Of a running prompt. One chunk at a time goes through the layers."""
    if under_way is not None and under_way.sequence is sequence:
        return prefill.go_on(under_way)
    return prefill.take(len(sequence.tokens) - sequence.computed, sequence.computed, may_spread=under_way is None)


def _gives_way(schedule: Schedule, sequence: TokenSequence, prefill: PrefillBudget, under_way: Slice | None) -> bool:
    """Whether a running prompt leaves the step to a more important one that waits and can start.

    One that needs the layers cannot while a chunk is under way.
    """
    if not schedule.waiting or schedule.waiting[0].order > sequence.order or not schedule.free_rows:
        return False
    first = schedule.waiting[0]
    hits = _cached_prefix(schedule, first)
    if hits is None or not _has_blocks(schedule, first, hits):
        return False
    computed = len(hits) * schedule.pool.block_size
    return under_way is None or not prefill.needs_layers(len(first.tokens) - computed, computed)


def _has_blocks(schedule: Schedule, sequence: TokenSequence, hits: list[int]) -> bool:
    """Whether a waiting sequence finds blocks beside its cached ones, and some to grow by."""
    needed = schedule.num_blocks_for(len(sequence.tokens)) - len(hits)
    return needed + schedule.num_reserved(sequence) <= schedule.pool.num_available(hits)


def _start_waiting(schedule: Schedule, prefill: PrefillBudget, result: Plan, *, may_spread: bool) -> None:
    """Start waiting sequences in order, as long as rows, blocks and the step's budget last.

    The first that finds no blocks keeps its place, and nobody overtakes it. One whose next block is just being
    computed by a running sequence is passed over: it will find the block in the cache.
    """
    for sequence in schedule.waiting[: 2 * schedule.max_num_seqs]:  # a copy, of bounded length
        if not schedule.free_rows or prefill.is_spent:
            return
        hits = _cached_prefix(schedule, sequence)
        if hits is None:
            continue
        if not _has_blocks(schedule, sequence, hits):
            return
        computed = len(hits) * schedule.pool.block_size
        portion = prefill.take(len(sequence.tokens) - computed, computed, may_spread=may_spread)
        if not portion.count:
            return
        schedule.start(sequence, hits)
        _count_hits(schedule, sequence)
        result.started.append(sequence)
        result.prefill(sequence, portion)


def _cached_prefix(schedule: Schedule, sequence: TokenSequence) -> list[int] | None:
    """Cached blocks to start from, which never cover its last token; None while the next is being computed."""
    if not schedule.caches_prefixes:
        return []
    sequence.extend_names(schedule.pool.block_size)
    if not sequence.reads_cache:
        return []
    limit = (len(sequence.tokens) - 1) // schedule.pool.block_size
    hits = schedule.pool.longest_prefix(sequence.names, limit)
    if len(hits) < limit and sequence.names[len(hits)] in schedule.coming:
        return None
    return hits


def _count_hits(schedule: Schedule, sequence: TokenSequence) -> None:
    """Tokens computed again after a preemption are neither queries nor hits."""
    if sequence.num_cached >= 0:
        return
    sequence.num_cached = sequence.computed
    if not schedule.caches_prefixes or not sequence.reads_cache:
        return
    schedule.num_cache_queries += sequence.num_prompt
    schedule.num_cache_hits += sequence.num_cached
