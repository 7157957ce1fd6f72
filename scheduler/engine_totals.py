"""What an engine has done so far, and what it tells of itself with every step."""

from backends.lm.step import StepOutput
from scheduler.frames import EngineStats
from scheduler.schedule import Schedule
from scheduler.token_sequence import Slice


class Totals:
    """Counts over the engine's life."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.prompt_tokens = self.generation_tokens = self.drafts = self.accepted = 0

    def add(self, slices: list[Slice], output: StepOutput) -> None:
        """Slices were computed. Before the commit, while they still say what they were."""
        for part, tokens in zip(slices, output.tokens, strict=True):
            sequence = part.sequence
            self.tokens += part.count
            if tokens and not sequence.has_answered:
                self.prompt_tokens += sequence.num_prompt
            if part.num_drafts and tokens:
                self.drafts += part.num_drafts
                self.accepted += len(tokens) - 1

    def stats(
        self, schedule: Schedule, *, step_seconds: float, step_tokens: int, seconds_per_token: float
    ) -> EngineStats:
        return EngineStats(
            num_running=len(schedule.running),
            num_waiting=len(schedule.waiting),
            num_blocks=schedule.pool.num_blocks,
            num_free_blocks=schedule.pool.num_free,
            num_preemptions_total=schedule.num_preemptions,
            num_cache_queries_total=schedule.num_cache_queries,
            num_cache_hits_total=schedule.num_cache_hits,
            num_prompt_tokens_total=self.prompt_tokens,
            num_generation_tokens_total=self.generation_tokens,
            num_drafts_total=self.drafts,
            num_accepted_drafts_total=self.accepted,
            num_steps_total=self.steps,
            step_seconds=step_seconds,
            step_tokens=step_tokens,
            seconds_per_token=seconds_per_token,
        )
