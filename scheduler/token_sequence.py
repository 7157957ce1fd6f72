"""One sequence of tokens on its way through the engine."""

from collections.abc import Sequence as TokenList

from backends.api.request import FinishReason, SamplingParams, TokenLogprobs
from kvcache.hashes import extend_chain


class TokenSequence:
    """A prompt and the tokens generated after it. Owned by the engine's `Schedule`.

    tokens   [0, num_named * block_size)   full, computed, findable under their names: read, never write
             [.., computed)                keys and values written
             [computed, len)               known, not computed yet
    blocks   cover at least [0, computed); none while the sequence waits
    drafts   unverified guesses of the tokens after the last
    """

    __slots__ = (
        "arrived",
        "blocks",
        "computed",
        "deadline",
        "drafts",
        "eos",
        "has_answered",
        "max_len",
        "min_tokens",
        "names",
        "num_cached",
        "num_named",
        "num_prompt",
        "number",
        "order",
        "priority",
        "prompt_logprobs",
        "root",
        "row",
        "sampling",
        "scheduled",
        "seed",
        "stops",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        prompt: list[int],
        sampling: SamplingParams,
        *,
        seed: int,
        max_len: int,
        eos: frozenset[int] = frozenset(),
        root: bytes = b"",
        priority: int = 0,
        arrived: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        """`max_len` is the most tokens the model and the pool can hold; `eos` the model's end-of-sequence tokens."""
        self.number = number
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.sampling = sampling
        self.seed = seed
        self.max_len = min(self.num_prompt + sampling.max_tokens, max_len)
        # behind the end of its grammar a sequence has nothing to say, whatever else was asked for
        has_grammar = sampling.grammar is not None
        self.min_tokens = 0 if has_grammar else sampling.min_tokens
        self.eos = frozenset() if sampling.ignore_eos and not has_grammar else eos
        self.stops = frozenset(sampling.stop_token_ids)
        self.root = root
        self.priority = priority
        self.arrived = arrived
        self.deadline = deadline
        self.order = (priority, arrived, number)
        self.row = -1
        self.computed = 0
        self.blocks: list[int] = []
        self.names: list[bytes] = []
        self.num_named = 0
        self.drafts: list[int] = []
        self.scheduled = 0.0
        self.num_cached = -1  # prompt tokens found in the cache at its first start, -1 before
        self.has_answered = False
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def reads_cache(self) -> bool:
        """Log-probabilities of the prompt need all of it computed, once."""
        return self.sampling.prompt_logprobs is None or self.has_answered

    def extend_names(self, block_size: int) -> None:
        """Name every block that its tokens fill."""
        if len(self.tokens) - len(self.names) * block_size >= block_size:
            extend_chain(self.names, self.root, self.tokens, block_size)

    def append(self, token: int) -> FinishReason | None:
        """Take a new token. Says why the sequence ends with it, if it does."""
        self.tokens.append(token)
        length = len(self.tokens)
        if length - self.num_prompt >= self.min_tokens and (token in self.eos or token in self.stops):
            return FinishReason.STOP
        return FinishReason.LENGTH if length >= self.max_len else None

    def stop_token(self, finish: FinishReason | None) -> int | None:
        """The stop token it ended with; an end-of-sequence token is none."""
        last = self.tokens[-1]
        return last if finish is FinishReason.STOP and last not in self.eos else None


class Slice:
    """What one step does for a sequence: compute `count` tokens, the last `num_drafts` of them guesses."""

    __slots__ = ("count", "num_drafts", "sequence")

    def __init__(self, sequence: TokenSequence, count: int, num_drafts: int = 0) -> None:
        self.sequence = sequence
        self.count = count
        self.num_drafts = num_drafts

    @property
    def samples(self) -> bool:
        sequence = self.sequence
        return sequence.computed + self.count - self.num_drafts == len(sequence.tokens)

    def tokens(self) -> TokenList[int]:
        sequence = self.sequence
        known = sequence.tokens[sequence.computed : sequence.computed + self.count]
        return known + sequence.drafts[: self.num_drafts] if self.num_drafts else known
