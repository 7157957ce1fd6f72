"""One sequence's sampling state: its settings, what it has generated, and how these change its logits."""

from collections.abc import Iterable, Sequence

import numpy as np

from backends.api.request import SamplingParams

_FORBIDDEN = np.float32(-np.inf)
# Below this a temperature divides logits out of float32's range, and the distribution is one token anyway
_GREEDY_TEMPERATURE = 1e-5


class SamplingRow:
    """From `Sampler.add` to `remove`. Knows no batch and no place in one."""

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_bias_ids",
        "_bias_values",
        "_counts",
        "_end_ids",
        "_output",
        "eos_ids",
        "sampling",
    )

    def __init__(
        self,
        tokens: Sequence[int],
        num_prompt: int,
        sampling: SamplingParams,
        eos_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        """Ids that the model has no logit for say nothing: those tokens are never drawn."""
        self.sampling = sampling
        self._output = list(tokens[num_prompt:])
        bias = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < vocab_size}
        self._bias_ids = _ids(bias, vocab_size)
        self._bias_values = np.fromiter(bias.values(), np.float32, len(bias))
        allowed = sampling.allowed_token_ids
        self._allowed = None if allowed is None else _ids(allowed, vocab_size)
        self._bad_words = tuple(word for word in sampling.bad_words if word and 0 <= word[-1] < vocab_size)
        self.eos_ids = _ids(eos_ids, vocab_size)
        self._end_ids = _ids({*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_ids)}, vocab_size)
        # repetition looks at the prompt too, the other penalties at what was generated
        seen_from = 0 if sampling.repetition_penalty != 1.0 else num_prompt
        self._counts = _TokenCounts(tokens[seen_from:num_prompt], self._output) if _has_penalty(sampling) else None

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always the one: also where top_k or min_p leave no other."""
        sampling = self.sampling
        return sampling.temperature < _GREEDY_TEMPERATURE or sampling.top_k == 1 or sampling.min_p >= 1.0

    @property
    def edits_logits(self) -> bool:
        """Whether `edit` may change anything for the next token."""
        return (
            len(self._bias_ids) > 0
            or self._allowed is not None
            or len(self._bad_words) > 0
            or len(self._output) < self.sampling.min_tokens
            or self._counts is not None
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """`tokens` were generated."""
        self._output.extend(tokens)
        if self._counts is not None:
            for token in tokens:
                self._counts.add(token)

    def edit(self, row: np.ndarray, pending: Sequence[int] = ()) -> None:
        """Apply bias, masks and penalties to a row of logits (vocab,) in place.

        `pending` are guessed tokens taken as generated before this row.
        """
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias_values
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill(_FORBIDDEN)
            row[self._allowed] = kept
        if self._bad_words:
            self._ban_words(row, pending)
        if len(self._output) + len(pending) < self.sampling.min_tokens:
            row[self._end_ids] = _FORBIDDEN
        if self._counts is not None:
            self._penalise(row, self._counts.after(pending))

    def _ban_words(self, row: np.ndarray, pending: Sequence[int]) -> None:
        """Forbid the last token of each bad word whose other tokens are the last generated ones."""
        longest = max(len(word) for word in self._bad_words) - 1
        tail = [*self._output[max(0, len(self._output) - longest) :], *pending]
        for *start, last in self._bad_words:
            if not start or tail[-len(start) :] == start:
                row[last] = _FORBIDDEN

    def _penalise(self, row: np.ndarray, counts: "_TokenCounts") -> None:
        sampling = self.sampling
        logits = row[counts.ids]
        if sampling.repetition_penalty != 1.0:
            penalty = np.float32(sampling.repetition_penalty)
            logits = np.where(logits > 0, logits / penalty, logits * penalty)
        if sampling.frequency_penalty:
            logits -= np.float32(sampling.frequency_penalty) * counts.counts
        if sampling.presence_penalty:
            logits -= np.float32(sampling.presence_penalty) * (counts.counts > 0)
        row[counts.ids] = logits


def _ids(tokens: Iterable[int], vocab_size: int) -> np.ndarray:
    return np.array([token for token in tokens if 0 <= token < vocab_size], np.int64)


def _has_penalty(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


class _TokenCounts:
    """Each token seen, once, and how often it was generated: arrays that grow, so a step costs no more than them."""

    __slots__ = ("_counts", "_ids", "_places", "_size")

    def __init__(self, seen: Sequence[int], generated: Sequence[int]) -> None:
        counts = dict.fromkeys(seen, 0)
        for token in generated:
            counts[token] = counts.get(token, 0) + 1
        self._size = len(counts)
        self._places = {token: place for place, token in enumerate(counts)}
        self._ids = np.fromiter(counts.keys(), np.int64, self._size)
        self._counts = np.fromiter(counts.values(), np.float32, self._size)

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: self._size]

    @property
    def counts(self) -> np.ndarray:
        """How often each of `ids` was generated, float32; 0 for tokens of the prompt alone."""
        return self._counts[: self._size]

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, self._size)
        if place == self._size:
            self._grow()
            self._ids[place], self._counts[place] = token, 0.0
            self._size += 1
        self._counts[place] += 1.0

    def after(self, tokens: Sequence[int]) -> "_TokenCounts":
        """These counts with `tokens` generated too; itself when there are none."""
        if not tokens:
            return self
        copy = _TokenCounts((), ())
        copy._ids, copy._counts = self._ids.copy(), self._counts.copy()
        copy._places, copy._size = dict(self._places), self._size
        for token in tokens:
            copy.add(token)
        return copy

    def _grow(self) -> None:
        if self._size == len(self._ids):
            room = max(16, len(self._ids))
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
