"""Grammars compiled for one model's vocabulary: off the stepping loop, once for all requests that bring the same."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from backends.api.errors import Code, ServingError
from backends.api.request import Grammar
from backends.lm.grammar import compile_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from backends.text.tokenizer import Tokenizer

Vocabulary = Callable[[], "LLTokenizer"]
"""Makes the vocabulary that masks are over. Takes about a second, so it is called on first use."""

_MAX_GRAMMARS = 64  # a compiled one holds some MB once it was used a lot
_MAX_BYTES = 2 << 20  # of the sources of those kept


class GrammarCompiler:
    """Owns the vocabulary, the compiled grammars (least recently used go first) and the thread that compiles."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._make_vocabulary = vocabulary
        self._vocabulary: LLTokenizer | None = None
        self._vocabulary_lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()  # guards `_kept`: the stepping thread and mask workers look things up
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-compile")

    def prepare(self, grammar: Grammar) -> "Future[LLMatcher]":
        """The compiled grammar, to be copied before use; on its way if nobody asked before.

        Fails with ServingError(INVALID) for one that does not compile, INTERNAL without a usable vocabulary.
        """
        with self._lock:
            found = self._kept.get(grammar)
            if found is None:
                found = self._kept[grammar] = self._worker.submit(self.compile, grammar)
                self._evict()
            self._kept.move_to_end(grammar)
            return found

    def compile(self, grammar: Grammar) -> "LLMatcher":
        """Compile here and now, sharing nothing with what is kept."""
        return compile_grammar(grammar, self._loaded_vocabulary())

    def forget(self, grammar: Grammar) -> None:
        """Copies of a compiled grammar add to one lexer, which is full at some time: the next request gets a new one."""
        with self._lock:
            self._kept.pop(grammar, None)

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _loaded_vocabulary(self) -> "LLTokenizer":
        with self._vocabulary_lock:
            if self._vocabulary is None:
                try:
                    self._vocabulary = self._make_vocabulary()
                except Exception as error:
                    message = f"the model's vocabulary cannot be used for grammars: {error}"
                    raise ServingError(Code.INTERNAL, message) from error
            return self._vocabulary

    def _evict(self) -> None:
        size = sum(len(grammar.text) for grammar in self._kept)
        while len(self._kept) > _MAX_GRAMMARS or (size > _MAX_BYTES and len(self._kept) > 1):
            grammar, _ = self._kept.popitem(last=False)
            size -= len(grammar.text)


def guidance_vocabulary(tokenizer: "Tokenizer", size: int, eos_ids: frozenset[int]) -> "LLTokenizer":
    """A model's `size` tokens as llguidance sees them. Tokens beyond the tokenizer's, and special ones, match no text."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Tokens(tokenizer, eos_ids)), n_vocab=size, eos_token=sorted(eos_ids))


class _Tokens:
    """The attributes that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokenizer: "Tokenizer", eos_ids: frozenset[int]) -> None:
        ids = range(tokenizer.vocab_size)
        if not eos_ids:
            raise ValueError("the model has no end-of-sequence token")
        self.eos_token_id = min(eos_ids)
        self.tokens = [tokenizer.token_bytes(token) for token in ids]
        self.special_token_ids = [token for token in ids if tokenizer.is_special(token) or token in eos_ids]
        self._tokenizer = tokenizer

    def __call__(self, text: Any) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)
