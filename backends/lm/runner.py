"""One step of the engine: its arrays in, tokens out."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from backends.api.errors import Code, ServingError
from backends.api.request import SamplingParams, TokenLogprobs
from backends.lm.batch import attention_batch
from backends.lm.grammar_compiler import GrammarCompiler, Vocabulary
from backends.lm.grammar_rows import GrammarRows, StepMasks
from backends.lm.layered import LayeredChunks, LayeredModel
from backends.lm.ops import AttentionBatch
from backends.lm.sampler import Sampler
from backends.lm.sampler_choice import NO_TOKEN
from backends.lm.sampler_logprobs import token_logprobs
from backends.lm.step import StepBatch, StepOutput

_PROMPT_LOGITS = 1 << 24  # values made at a time for prompt log-probabilities: 64 MB


class PagedModel(Protocol):
    """A model and its block pools: `Decoder` or `HfModel`."""

    vocab_size: int

    def forward(self, tokens: np.ndarray, batch: AttentionBatch) -> torch.Tensor:
        """(T,) int32 -> the last hidden states (T, hidden), valid until the next call. Writes keys and values."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(N, hidden) -> (N, vocab) float32, valid until the next call; may be overwritten."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What a loaded model offers. `fingerprint` names what its keys and values depend on."""

    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    fingerprint: str
    eos_token_ids: frozenset[int]


class LmRunner:
    """`ModelRunner` over a paged model. Only rows that choose a token, or whose log-probability is asked, meet the head."""

    def __init__(self, model: PagedModel, limits: RunnerLimits, vocabulary: Vocabulary | None = None) -> None:
        """`vocabulary` None: sequences with a grammar are refused."""
        self.vocab_size = model.vocab_size
        self.eos_token_ids = limits.eos_token_ids
        self.max_model_len = limits.max_model_len
        self.num_blocks = limits.num_blocks
        self.block_size = limits.block_size
        self.fingerprint = limits.fingerprint
        self._model: PagedModel | None = model
        self._sampler = Sampler(limits.max_num_seqs, model.vocab_size, limits.eos_token_ids)
        self._prompts: dict[int, _Prompt] = {}  # of rows that want their prompt's log-probabilities
        self._compiler = GrammarCompiler(vocabulary or _no_vocabulary)
        self._grammars = GrammarRows(self._compiler, model.vocab_size)

    @property
    def layered(self) -> LayeredChunks | None:
        """A new one each time, for one engine at a time."""
        model = self._loaded()
        if not isinstance(model, LayeredModel):
            return None
        return LayeredChunks(model.num_layers, self.block_size, self._loaded_layers, self._outcome)

    def prepare(self, sampling: SamplingParams) -> "Future[Any] | None":
        return None if sampling.grammar is None else self._compiler.prepare(sampling.grammar)

    def add(self, row: int, tokens: list[int], num_prompt: int, sampling: SamplingParams, seed: int) -> None:
        self._sampler.add(row, tokens, num_prompt, sampling, seed)
        if sampling.grammar is not None:
            self._grammars.add(row, sampling.grammar, tokens[num_prompt:])
        if sampling.prompt_logprobs is not None:
            self._prompts[row] = _Prompt(np.array(tokens[:num_prompt], np.int32), sampling.prompt_logprobs)

    def remove(self, row: int) -> None:
        self._sampler.remove(row)
        self._grammars.remove(row)
        self._prompts.pop(row, None)

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> StepOutput:
        model = self._loaded()
        attention = attention_batch(batch, self.block_size)
        return self._outcome(model.forward(batch.tokens, attention), batch, attention)

    def _outcome(self, hidden: torch.Tensor, batch: StepBatch, attention: AttentionBatch) -> StepOutput:
        model = self._loaded()
        output = self._choose(model, hidden, batch, attention.positions)
        if self._prompts:
            output.prompt_logprobs = self._score_prompts(model, hidden, batch)
        return output

    def close(self) -> None:
        """Gives the memory back. A step after it is an error."""
        if self._model is not None:
            self._model.close()
        self._model = None
        self._prompts.clear()
        self._grammars.close()
        self._compiler.close()

    def _loaded(self) -> PagedModel:
        if self._model is None:
            raise ServingError(Code.UNAVAILABLE, "the model is closed")
        return self._model

    def _loaded_layers(self) -> LayeredModel:
        model = self._loaded()
        assert isinstance(model, LayeredModel)
        return model

    def _choose(self, model: PagedModel, hidden: torch.Tensor, batch: StepBatch, positions: np.ndarray) -> StepOutput:
        """Tokens for the slices that sample: after their last token, and at each guess before it."""
        slices = np.flatnonzero(batch.samples)
        output = StepOutput([[] for _ in batch.rows])
        masks: dict[int, np.ndarray] = {}
        if len(self._grammars):
            slices, masks = self._with_masks(slices, batch, output)
        if not len(slices):
            return output
        drafts = batch.num_drafts[slices]
        ends = batch.query_starts[slices + 1]
        firsts = ends - drafts - 1  # where each slice's first choice is made
        lines = np.cumsum(drafts + 1) - drafts - 1  # and which row of logits it is made from
        if not drafts.any():
            logits = model.logits(_rows(hidden, firsts))
            sampled = self._sampler.sample(logits, batch.rows[slices], positions[firsts], masks)
            chosen = [[token] for token in sampled.tokens]
            logprobs = {line: [entry] for line, entry in sampled.logprobs.items()}
        else:
            guesses = [batch.tokens[first + 1 : end].tolist() for first, end in zip(firsts, ends, strict=True)]
            logits = model.logits(_rows(hidden, _ranges(firsts, ends)))
            masks = {int(lines[place]): mask for place, mask in masks.items()}  # such a slice has no guesses: one line
            verified = self._sampler.verify(logits, batch.rows[slices], positions[firsts], guesses, masks)
            chosen, logprobs = verified.tokens, verified.logprobs
        self._record(output, slices.tolist(), batch.rows, chosen, logprobs)
        for index, line, tokens in zip(slices.tolist(), lines.tolist(), chosen, strict=True):
            if tokens[-1] == NO_TOKEN:
                output.failed[index] = _no_token(logits[line + len(tokens) - 1])
        return output

    def _with_masks(
        self, slices: np.ndarray, batch: StepBatch, output: StepOutput
    ) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """The slices that choose a token in this step, and the masks of those by their place; the others are in `output`."""
        found: StepMasks = self._grammars.masks(batch.rows[slices].tolist())
        output.postponed |= {int(slices[line]) for line in found.late}
        output.failed |= {int(slices[line]): error for line, error in found.failed.items()}
        kept = [line for line in range(len(slices)) if line not in found.late and line not in found.failed]
        masks = {place: found.ready[line] for place, line in enumerate(kept) if line in found.ready}
        return slices[kept], masks

    def _record(
        self,
        output: StepOutput,
        slices: list[int],
        rows: np.ndarray,
        chosen: Sequence[list[int]],
        logprobs: dict[int, list[TokenLogprobs]],
    ) -> None:
        for line, (index, tokens) in enumerate(zip(slices, chosen, strict=True)):
            if tokens[-1] == NO_TOKEN:
                continue
            output.tokens[index] = tokens
            self._sampler.commit(int(rows[index]), tokens)
            if tokens[-1] not in self.eos_token_ids:  # which ends a row that has a grammar
                self._grammars.commit(int(rows[index]), tokens)
            if line in logprobs:
                output.logprobs[index] = logprobs[line]

    def _score_prompts(
        self, model: PagedModel, hidden: torch.Tensor, batch: StepBatch
    ) -> dict[int, list[TokenLogprobs]]:
        """For each prompt token of a slice, the log-probability of the prompt token after it."""
        found = {}
        for index, row in enumerate(batch.rows.tolist()):
            prompt = self._prompts.get(row)
            if prompt is None:
                continue
            start, end = int(batch.query_starts[index]), int(batch.query_starts[index + 1])
            first = int(batch.context_lens[index]) - (end - start)
            targets = prompt.tokens[first + 1 : first + 1 + end - start]
            if len(targets) or first < len(prompt.tokens):
                scored = hidden[start : start + len(targets)]
                found[index] = self._score(model, scored, targets, prompt.num_logprobs)
        return found

    def _score(self, model: PagedModel, hidden: torch.Tensor, targets: np.ndarray, count: int) -> list[TokenLogprobs]:
        """The entry of targets[i] in the distribution of hidden[i]. A few rows at a time: logits are large."""
        entries: list[TokenLogprobs] = []
        step = max(1, _PROMPT_LOGITS // self.vocab_size)
        for at in range(0, len(targets), step):
            logits = model.logits(hidden[at : at + step]).cpu().numpy()
            pairs = zip(logits, targets[at : at + step].tolist(), strict=True)
            entries += [token_logprobs(line, target, count) for line, target in pairs]
        return entries


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: np.ndarray  # (P,) int32
    num_logprobs: int


def _no_vocabulary() -> Any:
    raise ValueError("it has no tokenizer")


def _no_token(logits: torch.Tensor) -> ServingError:
    """Why nothing could be drawn from a line of logits, after the request's own edits."""
    if bool((logits == -torch.inf).all()):
        return ServingError(
            Code.INVALID,
            "no token is left to choose: the request's allowed_token_ids, bad_words, min_tokens or grammar forbid "
            "every one",
            reason="invalid_value",
        )
    return ServingError(Code.INTERNAL, "no token could be chosen: the model's logits are not finite")


def _ranges(firsts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Each slice's places from first to end, one slice after another."""
    counts = ends - firsts
    before = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(before - firsts, counts)


def _rows(hidden: torch.Tensor, places: np.ndarray) -> torch.Tensor:
    if len(places) == len(hidden):
        return hidden  # every token samples: the usual step
    return hidden[torch.from_numpy(places).to(hidden.device)]
