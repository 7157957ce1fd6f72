"""How much of which prompt goes into the next step beside the streams that run."""

from dataclasses import dataclass, field
from math import inf

from scheduler.pace import Pace
from scheduler.schedule import Schedule
from scheduler.step_time import StepLoad, StepTimeModel, chunk_load, num_pairs
from scheduler.token_sequence import Slice

_WORTHWHILE = 8  # tokens: a crumb of a chunk costs a slice and brings nearly nothing
_SPREAD = 4  # times `least`: a smaller chunk is not worth reading the weights once more


@dataclass(frozen=True, slots=True)
class Budget:
    """The most a step may carry: `max_tokens` in all, prefill by time as `pace` says.

    `num_layers` are the model's, where a chunk can go through a few of them a step; 1 where it is run as a whole only.
    """

    max_tokens: int
    pace: Pace = field(default_factory=Pace)
    num_layers: int = 1


@dataclass(frozen=True, slots=True)
class Portion:
    """What a step does for a prompt: `count` tokens, as a whole with `layers` None, else through so many layers more."""

    count: int
    layers: int | None = None


class PrefillBudget:
    """What is left for prefill in this step: `tokens`, and `seconds`, which the first `least` tokens may exceed.

    Where fewer than `least` fit into the time, a larger chunk of a long prompt takes all of it, and that of the
    following steps, on its way through the model's layers ("layered prefill", arXiv 2510.08055): it leaves each of them
    shorter than `least` tokens as a whole would.
    """

    __slots__ = ("_layers", "_times", "is_wanted", "least", "seconds", "tokens")

    def __init__(
        self, tokens: int, seconds: float, least: int, times: StepTimeModel, *, num_layers: int, is_wanted: bool
    ) -> None:
        """`num_layers` 1: nothing may be spread over layers. `is_wanted`: there is a prompt to compute."""
        self.tokens = tokens
        self.seconds = seconds
        self.least = least
        self.is_wanted = is_wanted
        self._times = times
        self._layers = num_layers

    @property
    def is_spent(self) -> bool:
        return self.tokens <= 0 or (self.seconds <= 0 and self.least <= 0)

    def needs_layers(self, wanted: int, context: int) -> bool:
        """Whether that many tokens of a sequence with `context` tokens computed had better go through the layers."""
        room = min(wanted, self.tokens)
        return self._layers > 1 and room >= _SPREAD * self.least and self._fitting(self.seconds, context) < self.least

    def take(self, wanted: int, context: int, *, may_spread: bool = True) -> Portion:
        """How many of `wanted` tokens of a sequence with `context` tokens computed go into this step.

        None of what needs layers while those are taken, which `may_spread` False says.
        """
        if self.is_spent:
            return Portion(0)
        room = min(wanted, self.tokens)
        if self.needs_layers(wanted, context):
            if not may_spread:
                return Portion(0)
            fitting = self._fitting(self.seconds * self._layers - self._times.coefficients.step, context)
            return self._spread(int(min(room, max(fitting, _SPREAD * self.least))), context)
        fitting = self._fitting(self.seconds, context)
        count = int(min(room, max(fitting, self.least)))
        if count < min(wanted, _WORTHWHILE) and not self.least:
            return Portion(0)
        self.tokens -= count
        self.least = max(self.least - count, 0)
        each = self._times.coefficients
        self.seconds -= each.token * count + each.chunk_pair * num_pairs(count, context + count)
        return Portion(count)

    def go_on(self, part: Slice) -> Portion:
        """For a chunk on its way through the layers, all there is left."""
        return self._spread(part.count, part.sequence.computed)

    def spend_on_drafts(self, count: int) -> None:
        self.tokens -= count

    def _spread(self, count: int, context: int) -> Portion:
        """All there is for this chunk: as many layers as its time allows, and one at least."""
        seconds = self._times.predict(chunk_load(count, context + count))
        allowed = self._layers * self.seconds / seconds if seconds > 0 else self._layers
        self.tokens = 0
        return Portion(count, max(1, int(min(allowed, self._layers))))

    def _fitting(self, seconds: float, context: int) -> float:
        return self._times.largest_chunk(seconds, context) if seconds > 0 else 0


def prefill_budget(schedule: Schedule, budget: Budget, times: StepTimeModel) -> PrefillBudget:
    """What the running streams leave of the next step."""
    contexts = [len(s.tokens) for s in schedule.running if len(s.tokens) - s.computed == 1]
    num_decoding = len(contexts)
    num_prefilling = len(schedule.running) - num_decoding + len(schedule.waiting)
    tokens = budget.max_tokens - num_decoding
    if not num_prefilling:
        return PrefillBudget(tokens, inf, 0, times, num_layers=1, is_wanted=False)
    decode_seconds = times.predict(StepLoad(num_decoding, decode_pairs=sum(contexts)))
    seconds = budget.pace.step_seconds(decode_seconds, num_decoding, num_prefilling) - decode_seconds
    least = budget.pace.min_chunk
    return PrefillBudget(tokens, seconds, least, times, num_layers=budget.num_layers, is_wanted=True)
