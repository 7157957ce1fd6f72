"""The contract between the engine and what computes a step: arrays in, tokens out.

The engine (`scheduler/engine.py`) decides; a `ModelRunner` computes. `runner.py` is the real one; tests
and simulations bring their own. Nothing here imports torch.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from backends.api.errors import ServingError
from backends.api.request import SamplingParams, TokenLogprobs


@dataclass(slots=True)
class StepBatch:
    """A ragged batch of S slices, T tokens in all. Slice s brings one sequence forward.

    Its tokens are `tokens[query_starts[s]:query_starts[s + 1]]`; the last of them is the sequence's token number
    `context_lens[s] - 1`, so its first is number `context_lens[s] - count`. Keys and values of the tokens before
    are in the pool already, found through `block_table[s]`; the step writes those of the slice.
    """

    rows: np.ndarray  # (S,) int32: the batch row each sequence holds from `add` to `remove`
    tokens: np.ndarray  # (T,) int32
    query_starts: np.ndarray  # (S + 1,) int32, from 0 to T
    context_lens: np.ndarray  # (S,) int32: tokens of the sequence once the slice is computed
    block_table: np.ndarray  # (S, max blocks of this batch) int32
    samples: np.ndarray  # (S,) bool: the slice reaches the sequence's last token, so a token is chosen
    num_drafts: np.ndarray  # (S,) int32: how many of the slice's last tokens are unverified guesses


@dataclass(slots=True)
class StepOutput:
    """What each slice brought: [] where nothing was sampled, else the accepted drafts and one token more."""

    tokens: list[list[int]]
    # slice -> one entry a token of `tokens`, for sequences that asked
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    # slice -> one entry a token of the slice that is a prompt token, for sequences that asked: the
    # log-probability of the prompt's NEXT token after it; the entry after the prompt's last token is left out
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    # slice -> why no token could be chosen for it; that sequence cannot go on, the others do
    failed: dict[int, ServingError] = field(default_factory=dict)
    # slices that reached their last token and were not sampled, because what their next token must fit is still being
    # worked out: they compute that token again in the next step
    postponed: set[int] = field(default_factory=set)


class LayeredPrefill(Protocol):
    """Takes a chunk of a prompt through the model a few layers at a time, with steps of other sequences in between.

    One chunk at a time: `begin`, then `advance` until it brings an outcome, or `drop`.
    """

    num_layers: int

    def begin(self, batch: StepBatch) -> None:
        """A batch of one slice without drafts, whose blocks are its own until the end."""
        ...

    def advance(self, num_layers: int) -> StepOutput | None:
        """Compute up to `num_layers` more; with the last of them, the outcome that `ModelRunner.step` would have had."""
        ...

    def drop(self) -> None:
        """Forget the chunk: no more is written to its blocks. Nothing without one."""
        ...


class ModelRunner(Protocol):
    """Owns the model, the block tensors and the sampling state of each batch row. Used by one thread.

    Rows are the numbers from 0 to `max_num_seqs` - 1 of the engine's options. `fingerprint` names what its keys and
    values depend on (weights, their version, dtype): equal fingerprints may share cached blocks.
    """

    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int
    num_blocks: int
    block_size: int
    fingerprint: str

    @property
    def layered(self) -> LayeredPrefill | None:
        """None where the model can only be run as a whole."""
        ...

    def prepare(self, sampling: SamplingParams) -> "Future[Any] | None":
        """Begin, on another thread, what must be ready before a sequence with this `grammar` is added.

        None where nothing must. The future fails with the ServingError that ends the request. Asked only for sequences with a grammar.
        """
        ...

    def add(self, row: int, tokens: list[int], num_prompt: int, sampling: SamplingParams, seed: int) -> None:
        """A sequence takes `row`. `tokens` beyond `num_prompt` were generated before a preemption.

        The token after position p is drawn with a uniform number made of `seed` and p alone, so it does
        not depend on neighbours, chunking or preemption.
        """
        ...

    def remove(self, row: int) -> None: ...

    def step(self, batch: StepBatch) -> StepOutput: ...

    def close(self) -> None: ...
