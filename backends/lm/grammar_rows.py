"""The constrained rows of a batch: where each stands in its grammar, and which tokens may come next."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.request import Grammar
from backends.lm.grammar import tidy
from backends.lm.grammar_compiler import GrammarCompiler

if TYPE_CHECKING:
    from llguidance import LLMatcher

# How long, in seconds, a step waits for masks beside rows that need none, and when it has nothing else to sample
_PATIENCE, _LONG_PATIENCE = 0.004, 0.1


@dataclass(slots=True)
class StepMasks:
    """By line: masks that are ready ((ceil(vocab / 32),) int32), lines that go on later, and lines that cannot."""

    ready: dict[int, np.ndarray] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    failed: dict[int, ServingError] = field(default_factory=dict)


class GrammarRows:
    """Owns the matcher of every constrained row from `add` to `remove`, and the threads that work masks out.

    A row's next mask is begun as soon as its token is known, so it is made beside the next forward pass. A matcher is
    touched by one job at a time: the next is begun only when the mask of the one before was taken.
    """

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._num_words = -(-vocab_size // 32)
        self._rows: dict[int, _Row] = {}
        self._workers = ThreadPoolExecutor(
            max_workers=max(2, min(8, (os.cpu_count() or 2) // 2)), thread_name_prefix="grammar-mask"
        )

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int, grammar: Grammar, generated: Sequence[int]) -> None:
        """`generated` are the tokens before a preemption."""
        state = self._rows[row] = _Row(self._compiler, grammar, self._num_words)
        state.next_mask = self._workers.submit(state.advance, list(generated))

    def commit(self, row: int, tokens: Sequence[int]) -> None:
        """`tokens` were chosen in `row`; nothing for a row without a grammar."""
        state = self._rows.get(row)
        if state is not None:
            state.next_mask = self._workers.submit(state.advance, list(tokens))

    def remove(self, row: int) -> None:
        self._rows.pop(row, None)

    def masks(self, rows: Sequence[int]) -> StepMasks:
        """For the rows that are about to choose a token, line by line. Waits a little for those not ready yet."""
        masks = StepMasks()
        constrained = [(line, self._rows[row]) for line, row in enumerate(rows) if row in self._rows]
        patience = _PATIENCE if len(constrained) < len(rows) else _LONG_PATIENCE
        end = time.monotonic() + patience
        for line, state in constrained:
            try:
                masks.ready[line] = state.next_mask.result(max(0.0, end - time.monotonic()))
            except TimeoutError:
                masks.late.add(line)
            except ServingError as error:
                masks.failed[line] = error
            except Exception as error:
                masks.failed[line] = _failed(f"{type(error).__name__}: {error}")
        return masks

    def close(self) -> None:
        self._rows.clear()
        self._workers.shutdown(wait=False, cancel_futures=True)


class _Row:
    """One sequence's place in its grammar."""

    def __init__(self, compiler: GrammarCompiler, grammar: Grammar, num_words: int) -> None:
        self.next_mask: Future[np.ndarray]
        self._compiler = compiler
        self._grammar = grammar
        self._mask = np.zeros(num_words, np.int32)
        self._tokens: list[int] = []
        self._matcher: LLMatcher | None = None
        self._is_shared = True

    def advance(self, tokens: list[int]) -> np.ndarray:
        """Take `tokens`, then the mask of the token after them. Raises ServingError where the matcher gives up."""
        self._tokens += tokens
        if self._matcher is None:
            self._matcher = self._copied()
        if self._is_ready(self._matcher, tokens):
            return self._mask
        if self._is_shared:
            # the lexer that all copies share may be full of what others said
            self._compiler.forget(self._grammar)
            self._matcher, self._is_shared = self._compiler.compile(self._grammar), False
            if self._is_ready(self._matcher, self._tokens):
                return self._mask
        raise _failed(tidy(self._matcher.get_error()))

    def _copied(self) -> "LLMatcher":
        compiled = self._compiler.prepare(self._grammar)
        # forgotten since it was prepared: waiting for the compiling thread could take its whole queue
        return compiled.result().deep_copy() if compiled.done() else self._compiler.compile(self._grammar)

    def _is_ready(self, matcher: "LLMatcher", tokens: list[int]) -> bool:
        if tokens and not matcher.consume_tokens(tokens):
            return False
        if matcher.is_stopped() and not matcher.is_accepting():
            return False
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        return not matcher.is_error()


def _failed(why: str) -> ServingError:
    """What the lexer cannot bear shows only as it goes, long after the grammar was compiled: it is the grammar's fault."""
    if why.startswith("lexer error"):
        text = f"the form asked for is more work than the bounds allow: {why}"
        return ServingError(Code.INVALID, text, reason="invalid_json_schema")
    return ServingError(Code.INTERNAL, f"the answer could not be held to its grammar: {why}", reason="grammar_failed")
