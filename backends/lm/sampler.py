"""From a step's logits to tokens, each sequence by its own settings, whoever shares the batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from backends.api.request import SamplingParams, TokenLogprobs
from backends.lm.sampler_choice import NO_TOKEN, RowSampler, greedy, greedy_all
from backends.lm.sampler_logprobs import token_logprobs
from backends.lm.sampler_mask import Masks, apply_mask
from backends.lm.sampler_row import SamplingRow
from backends.lm.sampler_torch import BatchParams, draw_batch, greedy_batch
from backends.lm.sampler_uniform import as_seed, uniforms


@dataclass(slots=True)
class Sampled:
    """A token a line; NO_TOKEN (-1) where nothing could be drawn: NaN logits, or no token allowed.

    `logprobs` has the lines of sequences that asked.
    """

    tokens: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


@dataclass(slots=True)
class Verified:
    """A slice's accepted guesses and one token more, ending at the first NO_TOKEN; log-probabilities in step."""

    tokens: list[list[int]]
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


class Sampler:
    """Owns the sampling state of every batch row, from `add` to `remove`. Used by one thread.

    A line is a row of logits in one call. Its token depends on its logits, its sequence's settings and history, and
    the uniform number of (seed, position): not on the batch, the order of lines or the row's number.
    """

    def __init__(self, max_rows: int, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = eos_token_ids
        self._rows: dict[int, SamplingRow] = {}
        self._seeds = np.zeros(max_rows, np.uint64)
        self._greedy = np.ones(max_rows, np.bool_)
        self._plain = np.ones(max_rows, np.bool_)  # nothing beside a choice: no edits, no log-probabilities
        self._temperature = np.ones(max_rows, np.float32)
        self._top_k = np.zeros(max_rows, np.int64)
        self._top_p = np.ones(max_rows, np.float32)
        self._min_p = np.zeros(max_rows, np.float32)
        self._row_sampler = RowSampler(vocab_size)

    def add(self, row: int, tokens: Sequence[int], num_prompt: int, sampling: SamplingParams, seed: int) -> None:
        """A sequence takes `row`. `tokens` beyond `num_prompt` were generated before a preemption."""
        state = SamplingRow(tokens, num_prompt, sampling, self._eos_ids, self._vocab_size)
        self._rows[row] = state
        self._seeds[row] = as_seed(seed)
        self._greedy[row] = state.is_greedy
        self._plain[row] = not state.edits_logits and sampling.logprobs is None
        self._temperature[row] = sampling.temperature
        self._top_k[row] = sampling.top_k if 0 < sampling.top_k < self._vocab_size else 0
        self._top_p[row] = sampling.top_p
        self._min_p[row] = sampling.min_p

    def remove(self, row: int) -> None:
        self._rows.pop(row, None)

    def commit(self, row: int, tokens: Sequence[int]) -> None:
        """`tokens` were generated in `row`: its penalties, bad words and min_tokens see them from now on."""
        state = self._rows[row]
        state.commit(tokens)
        self._plain[row] = not state.edits_logits and state.sampling.logprobs is None

    def sample(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        masks: Masks | None = None,
        pending: Sequence[Sequence[int]] | None = None,
    ) -> Sampled:
        """A token for each line of `logits` (N, vocab) float32, which may be overwritten.

        `rows` (N,) names each line's sequence, `positions` (N,) the place in it of the token that gave the logits.
        `pending[i]` are guessed tokens that line i takes as generated; what is chosen is not committed.
        """
        if not masks and self._plain[rows].all() and self._greedy[rows].all():
            return Sampled(self._greedy_lines(logits))
        raw = self._edit(logits, rows, masks or {}, pending)
        tokens = self._draw(logits, rows, positions)
        return Sampled(tokens, self._logprobs(raw, rows, tokens))

    def verify(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        drafts: Sequence[Sequence[int]],
        masks: Masks | None = None,
    ) -> Verified:
        """For S slices: the guesses that are what would have been chosen, and the token chosen after them.

        Slice s has len(drafts[s]) + 1 lines of `logits`, one after another; `rows` and `positions` (S,) are those of
        its first line. Every line draws with its own position's number, so the tokens are those of one at a time.
        """
        counts = np.fromiter((len(draft) + 1 for draft in drafts), np.int64, len(drafts))
        starts = np.cumsum(counts) - counts
        offsets = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        pending = [draft[:place] for draft in drafts for place in range(len(draft) + 1)]
        sampled = self.sample(logits, np.repeat(rows, counts), np.repeat(positions, counts) + offsets, masks, pending)
        verified = Verified([])
        for index, (start, draft) in enumerate(zip(starts.tolist(), drafts, strict=True)):
            tokens = _accepted(sampled.tokens[start : start + len(draft) + 1], draft)
            verified.tokens.append(tokens)
            if start in sampled.logprobs:
                lines = range(start, start + len(tokens))
                verified.logprobs[index] = [sampled.logprobs[line] for line in lines if line in sampled.logprobs]
        return verified

    def _greedy_lines(self, logits: torch.Tensor) -> list[int]:
        if logits.device.type == "cpu":
            return greedy_all(logits.numpy())
        tokens: list[int] = greedy_batch(logits).tolist()
        return tokens

    def _edit(
        self, logits: torch.Tensor, rows: np.ndarray, masks: Masks, pending: Sequence[Sequence[int]] | None
    ) -> dict[int, np.ndarray]:
        """Apply edits and masks to their lines, and keep the raw logits of lines that want log-probabilities."""
        raw = {}
        for line, row in enumerate(rows.tolist()):
            if self._plain[row] and line not in masks:
                continue
            state = self._rows[row]
            values = logits[line].cpu().numpy()  # on the CPU a view, elsewhere a copy to be written back
            edits = line in masks or state.edits_logits
            if state.sampling.logprobs is not None:
                raw[line] = values.copy() if edits else values
            if edits:
                _edit_row(values, state, pending[line] if pending is not None else (), masks.get(line))
                if logits.device.type != "cpu":
                    logits[line] = torch.from_numpy(values).to(logits.device)
        return raw

    def _draw(self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> list[int]:
        numbers = uniforms(self._seeds[rows], positions)
        if logits.device.type == "cpu":
            return self._draw_lines(logits.numpy(), rows, numbers)
        return self._draw_batch(logits, rows, numbers)

    def _draw_lines(self, lines: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> list[int]:
        settings = zip(
            self._greedy[rows].tolist(),
            numbers.tolist(),
            self._temperature[rows].tolist(),
            self._top_k[rows].tolist(),
            self._top_p[rows].tolist(),
            self._min_p[rows].tolist(),
            strict=True,
        )
        return [
            greedy(line) if is_greedy else self._row_sampler.draw(line, *how)
            for line, (is_greedy, *how) in zip(lines, settings, strict=True)
        ]

    def _draw_batch(self, logits: torch.Tensor, rows: np.ndarray, numbers: np.ndarray) -> list[int]:
        def there(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(logits.device)

        is_greedy = self._greedy[rows]
        temperature = np.where(is_greedy, np.float32(1.0), self._temperature[rows])
        params = BatchParams(
            there(numbers),
            there(temperature),
            there(self._top_k[rows]),
            there(self._top_p[rows]),
            there(self._min_p[rows]),
        )
        drawn = torch.where(there(is_greedy), greedy_batch(logits), draw_batch(logits, params))
        tokens: list[int] = drawn.tolist()
        return tokens

    def _logprobs(self, raw: dict[int, np.ndarray], rows: np.ndarray, tokens: list[int]) -> dict[int, TokenLogprobs]:
        found = {}
        for line, values in raw.items():
            count = self._rows[int(rows[line])].sampling.logprobs
            if count is not None and tokens[line] != NO_TOKEN:
                found[line] = token_logprobs(values, tokens[line], count)
        return found


def _accepted(chosen: list[int], draft: Sequence[int]) -> list[int]:
    """What was chosen up to and with the first token that is not the guess."""
    for place, guess in enumerate(draft):
        if chosen[place] != guess:
            return chosen[: place + 1]
    return chosen


def _edit_row(values: np.ndarray, state: SamplingRow, pending: Sequence[int], mask: np.ndarray | None) -> None:
    """Edits and the mask: what both allow. Where that is nothing, an answer that the mask lets end may end."""
    ends = values[state.eos_ids]
    state.edit(values, pending)
    if mask is None:
        return
    apply_mask(values, mask)
    if np.isneginf(values.max()):
        values[state.eos_ids] = ends
        apply_mask(values, mask)
