"""An engine's settings, and the check of a request against its limits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec

from backends.api.errors import Code, ServingError
from backends.api.request import GenerateRequest, Pooling
from backends.lm.parameters import Parser, flag, number, read, whole
from scheduler.frames import EngineLimits
from scheduler.pace import Pace


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Config parameters of an LLM that concern scheduling, with vLLM's names where it has one.

    `itl_target_ms` 0 adapts: a prompt being prefilled may about double the longest times between two tokens of others.
    `seed` makes the seeds of requests that bring none repeatable.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int = 1 << 20
    itl_target_ms: float = 0.0
    seed: int | None = None

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str], model_name: str) -> Self:
        """From a ModelConfig's parameters; those of others are left alone. Raises ServingError(INVALID)."""
        options = cls(**read(_PARSERS, parameters, model_name))
        if options.max_num_batched_tokens < options.max_num_seqs:
            raise ServingError(
                Code.INVALID,
                f"model '{model_name}': parameter 'max_num_batched_tokens' ({options.max_num_batched_tokens}) must be at "
                f"least 'max_num_seqs' ({options.max_num_seqs}): each running sequence needs a token a step",
            )
        return options

    @property
    def max_num_open_reqs(self) -> int:
        """Running and queued together."""
        return self.max_num_seqs + self.max_num_queued_reqs

    @property
    def pace(self) -> Pace:
        return Pace(itl_target=self.itl_target_ms / 1000 or None)


_PARSERS: dict[str, Parser] = {
    "max_num_seqs": whole(1, 4096),
    "max_num_batched_tokens": whole(1, 1 << 20),
    "enable_prefix_caching": flag,
    "max_num_queued_reqs": whole(0, 1 << 30),
    "max_num_queued_tokens": whole(0, 1 << 40),
    "itl_target_ms": number(0, 1e6),
    "seed": whole(0, (1 << 63) - 1),
}


def check_request(request: GenerateRequest, limits: EngineLimits) -> None:
    """Raises ServingError(INVALID) for what an engine of these limits can never run."""
    if request.pooling is not None:
        _check_pooling(request.prompt, request.pooling, limits)
        return
    length, sampling = len(request.prompt), request.sampling
    if not length:
        raise ServingError(Code.INVALID, "the prompt is empty: expected at least one token", reason="invalid_prompt")
    pool = limits.num_blocks * limits.block_size
    if length >= min(limits.max_model_len, pool):
        room = "" if pool >= limits.max_model_len else f", of which the KV cache holds {pool}"
        raise ServingError(
            Code.INVALID,
            f"This model's maximum context length is {limits.max_model_len} tokens{room}. The prompt has {length} tokens, "
            "which leaves no room for an answer. Please shorten it.",
            reason="context_length_exceeded",
        )
    if sampling.max_tokens < 1:
        raise ServingError(
            Code.INVALID, f"max_tokens must be at least 1, got {sampling.max_tokens}", param="max_tokens"
        )
    _check_tokens("prompt", (min(request.prompt), max(request.prompt)), limits.vocab_size)
    _check_tokens("stop_token_ids", sampling.stop_token_ids, limits.vocab_size)
    _check_tokens("logit_bias", sampling.logit_bias, limits.vocab_size)
    _check_tokens("allowed_token_ids", sampling.allowed_token_ids or (), limits.vocab_size)
    for word in sampling.bad_words:
        _check_tokens("bad_words", word, limits.vocab_size)


def check_together(requests: Sequence[GenerateRequest], options: EngineOptions) -> None:
    """Raises ServingError(INVALID) for requests of one answer that the queue can never hold at once, however idle the
    engine: all of them are queued before the first one starts."""
    if len(requests) > options.max_num_open_reqs:
        raise ServingError(
            Code.INVALID,
            f"the request asks for {len(requests)} choices at once, and this model takes at most "
            f"{options.max_num_open_reqs} (max_num_seqs {options.max_num_seqs} and max_num_queued_reqs "
            f"{options.max_num_queued_reqs})",
            reason="invalid_value",
        )
    num_tokens = sum(len(request.prompt) for request in requests)
    if len(requests) > 1 and num_tokens > options.max_num_queued_tokens:
        raise ServingError(
            Code.INVALID,
            f"the prompts of the request's {len(requests)} choices have {num_tokens} tokens together, and this model "
            f"takes at most {options.max_num_queued_tokens} (max_num_queued_tokens)",
            reason="invalid_value",
        )


def _check_pooling(prompt: list[int], pooling: Pooling, limits: EngineLimits) -> None:
    lengths = pooling.lengths
    if not lengths or min(lengths) < 1:
        raise ServingError(Code.INVALID, "a text is empty: expected at least one token", reason="invalid_prompt")
    if max(lengths) > limits.max_model_len:
        raise ServingError(
            Code.INVALID,
            f"This model's maximum context length is {limits.max_model_len} tokens, but a text has {max(lengths)} tokens.",
            reason="context_length_exceeded",
        )
    _check_tokens("input", (min(prompt), max(prompt)), limits.vocab_size)


def _check_tokens(param: str, tokens: Iterable[int], vocab_size: int) -> None:
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise ServingError(
                Code.INVALID,
                f"{param}: token id {token} is not in the vocabulary of {vocab_size} tokens (0 to {vocab_size - 1})",
                param=param,
            )
