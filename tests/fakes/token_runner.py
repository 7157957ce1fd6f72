"""A model runner without a model, whose every token depends on all tokens before, read back through the block tables.

What a position leaves in the pool is a mix of its token and of all that the positions before it left there, as keys and
values of a deep model are. So a wrong block, a lost chunk, a stale cache entry or a mixed-up row changes the text.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from backends.api.request import SamplingParams, TokenLogprobs
from backends.lm.step import StepBatch, StepOutput

_MASK = (1 << 64) - 1


def _mix(*values: int) -> int:
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ value) * 0xBF58476D1CE4E5B9) & _MASK
        state ^= state >> 29
    return state


def _choose(state: int, position: int, sampling: SamplingParams, seed: int, vocab_size: int) -> int:
    """The token after `position`, where `state` is what attention saw."""
    return _mix(state, *((seed, position) if sampling.temperature else ())) % vocab_size


def reference_tokens(
    prompt: list[int], sampling: SamplingParams, seed: int, *, max_len: int, vocab_size: int, eos: frozenset[int]
) -> list[int]:
    """What the fake model says to a prompt, computed without blocks, chunks or neighbours."""
    tokens, state = list(prompt), 0
    for position, token in enumerate(tokens):
        state = (state + _mix(state, token, position) * (2 * position + 1)) & _MASK
    limit = min(len(prompt) + sampling.max_tokens, max_len)
    while True:
        position = len(tokens) - 1
        token = _choose(state, position, sampling, seed, vocab_size)
        tokens.append(token)
        state = (state + _mix(state, token, position + 1) * (2 * position + 3)) & _MASK
        enough = len(tokens) - len(prompt) >= sampling.min_tokens
        ends = token in sampling.stop_token_ids or (token in eos and not sampling.ignore_eos)
        if (enough and ends) or len(tokens) >= limit:
            return tokens[len(prompt) :]


class FakeClock:
    def __init__(self, now: float = 1.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeRunner:
    """See the module. `fail_next` is raised by the next step; `on_step` sees each batch before it is computed.

    With `num_layers` a chunk can be taken through that many layers in turn, each an equal part of the step's time.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 256,
        vocab_size: int = 97,
        eos_token_ids: frozenset[int] = frozenset({0}),
        clock: FakeClock | None = None,
        on_step: Callable[[StepBatch], object] = lambda batch: None,
        num_layers: int = 1,
    ) -> None:
        self.layered = FakeLayers(self, num_layers) if num_layers > 1 else None
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.fingerprint = "fake"
        self.fail_next: Exception | None = None
        self.fails_add: Exception | None = None
        self.closed = False
        self.rows: dict[int, tuple[SamplingParams, int]] = {}
        self.num_tokens = 0
        self._history: dict[int, list[int]] = {}
        self._num_prompt: dict[int, int] = {}
        self._clock = clock
        self._on_step = on_step
        self._pool = np.zeros(num_blocks * block_size, dtype=np.uint64)
        self._weights = np.arange(1, 2 * max_model_len + 3, 2, dtype=np.uint64)

    def add(self, row: int, tokens: list[int], num_prompt: int, sampling: SamplingParams, seed: int) -> None:
        assert row not in self.rows, f"row {row} is taken"
        if self.fails_add is not None:
            error, self.fails_add = self.fails_add, None
            raise error
        self.rows[row] = (sampling, seed)
        self._history[row] = list(tokens)
        self._num_prompt[row] = num_prompt

    def remove(self, row: int) -> None:
        del self.rows[row]

    def step(self, batch: StepBatch) -> StepOutput:
        self._on_step(batch)
        assert len(set(batch.rows.tolist())) == len(batch.rows)
        self.spend(batch, 1.0)
        return self.answer(batch)

    def spend(self, batch: StepBatch, share: float) -> None:
        """The time that this share of a step takes, and its failure if one is due."""
        counts = np.diff(batch.query_starts)
        pairs = float(np.sum(counts * (batch.context_lens - (counts - 1) / 2)))
        if self._clock is not None:
            self._clock.now += share * (0.005 + 0.0005 * len(batch.tokens) + 1e-6 * pairs)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error

    def answer(self, batch: StepBatch) -> StepOutput:
        self.num_tokens += len(batch.tokens)
        output = StepOutput([])
        for index in range(len(batch.rows)):
            self._slice(batch, index, output)
        return output

    def close(self) -> None:
        self.closed = True

    def _slice(self, batch: StepBatch, index: int, output: StepOutput) -> None:
        row = int(batch.rows[index])
        sampling, seed = self.rows[row]
        history = self._history[row]
        tokens = batch.tokens[batch.query_starts[index] : batch.query_starts[index + 1]].tolist()
        num_drafts = int(batch.num_drafts[index])
        first = int(batch.context_lens[index]) - len(tokens)
        known = len(tokens) - num_drafts
        assert tokens[:known] == history[first : first + known]
        assert bool(batch.samples[index]) == (first + known == len(history))
        states = self._attend(batch.block_table[index], first, tokens)
        chosen = [
            _choose(state, first + offset, sampling, seed, self.vocab_size) for offset, state in enumerate(states)
        ]
        self._log_prompt(index, row, first, known, output)
        if not batch.samples[index]:
            output.tokens.append([])
            return
        accepted = [chosen[known - 1]]
        for draft, token in zip(tokens[known:], chosen[known:], strict=True):
            if draft != accepted[-1]:
                break
            accepted.append(token)
        history += accepted
        output.tokens.append(accepted)
        if sampling.logprobs is not None:
            output.logprobs[index] = [TokenLogprobs(token, -0.5, 1, []) for token in accepted]

    def _attend(self, table: np.ndarray, first: int, tokens: list[int]) -> list[int]:
        positions = np.arange(first + len(tokens))
        slots = table[positions // self.block_size].astype(np.int64) * self.block_size + positions % self.block_size
        past = self._pool[slots[:first]] * self._weights[:first]
        state = int(past.sum(dtype=np.uint64))
        states = []
        for position, token in enumerate(tokens, first):
            key = _mix(state, token, position)
            self._pool[slots[position]] = key
            state = (state + key * (2 * position + 1)) & _MASK
            states.append(state)
        return states

    def _log_prompt(self, index: int, row: int, first: int, count: int, output: StepOutput) -> None:
        if self.rows[row][0].prompt_logprobs is None:
            return
        prompt = self._history[row][: self._num_prompt[row]]
        following = prompt[first + 1 : first + count + 1]
        output.prompt_logprobs[index] = [TokenLogprobs(token, -1.0, 1, []) for token in following]


class FakeLayers:
    """See `LayeredPrefill`. Keys are written with the last layer, so that whoever reads them earlier says something else."""

    def __init__(self, runner: FakeRunner, num_layers: int) -> None:
        self.num_layers = num_layers
        self.num_chunks = 0
        self.fail_next: Exception | None = None
        self._runner = runner
        self._batch: StepBatch | None = None
        self._done = 0

    @property
    def is_busy(self) -> bool:
        return self._batch is not None

    def begin(self, batch: StepBatch) -> None:
        assert self._batch is None, "one chunk at a time"
        assert len(batch.rows) == 1
        self._batch, self._done = batch, 0
        self.num_chunks += 1

    def advance(self, num_layers: int) -> StepOutput | None:
        batch = self._batch
        assert batch is not None
        assert num_layers > 0
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        num_layers = min(num_layers, self.num_layers - self._done)
        self._done += num_layers
        self._runner.spend(batch, num_layers / self.num_layers)
        if self._done < self.num_layers:
            return None
        self._batch = None
        return self._runner.answer(batch)

    def drop(self) -> None:
        self._batch = None


def make_runner(
    folder: Path, parameters: Mapping[str, str], model_name: str, progress: Callable[[str, float, float], None]
) -> FakeRunner:
    """A runner for an engine child. `parameters` may set its sizes, as text."""
    progress("weights", 1.0, 2.0)
    names = ("num_blocks", "block_size", "max_model_len", "vocab_size")
    return FakeRunner(**{name: int(parameters[name]) for name in names if name in parameters})  # type: ignore[arg-type]
