"""Which tokens form the next step, and what its outcome means for the sequences. No clock, no device."""

from dataclasses import dataclass, field
from math import inf

from backends.api.request import FinishReason, TokenEvent, TokenLogprobs
from backends.lm.step import StepOutput
from scheduler.pace import Pace
from scheduler.schedule import Schedule
from scheduler.step_time import StepTimeModel, num_pairs
from scheduler.token_sequence import Slice, TokenSequence

_WORTHWHILE = 8  # tokens: a crumb of a chunk costs a slice and brings nearly nothing


@dataclass(frozen=True, slots=True)
class Budget:
    """The most a step may carry: `max_tokens` in all, prefill by time as `pace` says."""

    max_tokens: int
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class Plan:
    """One step. `started` took a row, `preempted` gave one back (it stands in `row` until they start again).

    No sequence is in both: a step that preempts lets nobody in.
    """

    slices: list[Slice] = field(default_factory=list)
    started: list[TokenSequence] = field(default_factory=list)
    preempted: list[TokenSequence] = field(default_factory=list)
    num_tokens: int = 0
    num_pairs: float = 0.0
    has_prefill: bool = False

    def add(self, sequence: TokenSequence, count: int, num_drafts: int = 0) -> None:
        self.slices.append(Slice(sequence, count, num_drafts))
        self.num_tokens += count
        self.has_prefill |= count - num_drafts > 1
        self.num_pairs += count * (sequence.computed + (count + 1) / 2)


def plan(schedule: Schedule, budget: Budget, times: StepTimeModel) -> Plan:
    """The next step: every running sequence moves on, then as many waiting ones start as fit.

    Sequences with one token to compute (and its drafts) come first in the budget; what is left of it, in tokens and
    in time, goes to prefill in order of importance. When blocks run out, the least important running sequence is
    preempted, which is never one that is already planned.
    """
    result = Plan()
    prefill = _prefill_budget(schedule, budget, times)
    drafts = budget.max_tokens - len(schedule.running) - (budget.pace.min_chunk if prefill.wanted else 0)
    running, block_size, index = schedule.running, schedule.pool.block_size, 0
    while index < len(running):
        sequence = running[index]
        count, num_drafts = len(sequence.tokens) - sequence.computed, 0
        if count > 1:
            count = prefill.take(count, sequence.computed)
        elif sequence.drafts:
            num_drafts = _num_drafts(schedule, sequence, drafts)
            drafts -= num_drafts
            prefill.tokens -= num_drafts
            count += num_drafts
        end = sequence.computed + count
        if end > len(sequence.blocks) * block_size and not _make_room(schedule, sequence, end, result.preempted):
            break  # it was the least important itself
        if count:
            result.add(sequence, count, num_drafts)
        index += 1
    if schedule.waiting and not result.preempted:
        _start_waiting(schedule, prefill, result)
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


class _PrefillBudget:
    """What is left for prefill in this step: `tokens`, and `seconds` of which `least` tokens need not keep count."""

    __slots__ = ("least", "seconds", "times", "tokens", "wanted")

    def __init__(self, tokens: int, seconds: float, least: int, times: StepTimeModel, *, wanted: bool) -> None:
        self.tokens = tokens
        self.seconds = seconds
        self.least = least
        self.times = times
        self.wanted = wanted

    def take(self, wanted: int, context: int) -> int:
        """How many of `wanted` tokens of a sequence with `context` tokens computed go into this step."""
        fitting = max(self.times.largest_chunk(self.seconds, context) if self.seconds > 0 else 0, self.least)
        count = int(min(wanted, self.tokens, fitting))
        if count <= 0 or (count < min(wanted, _WORTHWHILE) and not self.least):
            return 0
        self.tokens -= count
        self.least = max(self.least - count, 0)
        _, b, c = self.times.coefficients
        self.seconds -= b * count + c * num_pairs(count, context + count)
        return count


def _prefill_budget(schedule: Schedule, budget: Budget, times: StepTimeModel) -> _PrefillBudget:
    contexts = [len(s.tokens) for s in schedule.running if len(s.tokens) - s.computed == 1]
    num_decoding = len(contexts)
    num_prefilling = len(schedule.running) - num_decoding + len(schedule.waiting)
    tokens = budget.max_tokens - num_decoding
    if not num_prefilling:
        return _PrefillBudget(tokens, inf, 0, times, wanted=False)
    decode_seconds = times.predict(num_decoding, sum(contexts))
    seconds = budget.pace.step_seconds(decode_seconds, num_decoding, num_prefilling) - decode_seconds
    return _PrefillBudget(tokens, seconds, budget.pace.min_chunk, times, wanted=True)


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


def _start_waiting(schedule: Schedule, prefill: _PrefillBudget, result: Plan) -> None:
    """Start waiting sequences in order, as long as rows, blocks and the step's budget last.

    The first that finds no blocks keeps its place, and nobody overtakes it. One whose next block is just being
    computed by a running sequence is passed over: it will find the block in the cache.
    """
    for sequence in schedule.waiting[: 2 * schedule.max_num_seqs]:  # a copy, of bounded length
        if not schedule.free_rows or prefill.tokens <= 0 or (prefill.seconds <= 0 and prefill.least <= 0):
            return
        hits = _cached_prefix(schedule, sequence)
        if hits is None:
            continue
        needed = schedule.num_blocks_for(len(sequence.tokens)) - len(hits)
        if needed + schedule.num_reserved(sequence) > schedule.pool.num_available(hits):
            return
        computed = len(hits) * schedule.pool.block_size
        count = prefill.take(len(sequence.tokens) - computed, computed)
        if not count:
            return
        schedule.start(sequence, hits)
        _count_hits(schedule, sequence)
        result.started.append(sequence)
        result.add(sequence, count)


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
