"""What a request's sampling settings become for one model and one prompt: token ids checked, lengths settled."""

from collections.abc import Iterable

import msgspec

from backends.api.errors import ServingError
from backends.api.request import SamplingParams
from backends.text.tokenizer import Tokenizer
from openai_api.errors import invalid
from openai_api.fields import INT64_MAX
from openai_api.generation_fields import GenerationOptions


def for_vocabulary(options: GenerationOptions, tokenizer: Tokenizer, echo_logprobs: bool) -> SamplingParams:
    """`options.sampling` with bad words as tokens, and the prompt's log-probabilities where an echo shows them.

    Raises ServingError for a token id outside the vocabulary.
    """
    sampling, size = options.sampling, tokenizer.vocab_size
    check_tokens(sampling.logit_bias, size, "logit_bias")
    check_tokens(sampling.allowed_token_ids or (), size, "allowed_token_ids")
    check_tokens(sampling.stop_token_ids, size, "stop_token_ids")
    return msgspec.structs.replace(
        sampling,
        top_k=min(sampling.top_k, size),
        bad_words=_bad_words(options.bad_words, tokenizer),
        prompt_logprobs=_prompt_logprobs(options.sampling, echo_logprobs),
    )


def check_tokens(tokens: Iterable[int], vocab_size: int, param: str) -> None:
    for token in tokens:
        if not 0 <= token < vocab_size:
            message = f"'{param}': token id {token} is outside the model's vocabulary of {vocab_size}"
            raise invalid("invalid_value", param, message)


def with_seed(sampling: SamplingParams, sample: int) -> SamplingParams:
    """The settings of a prompt's sample number `sample`: seeded samples differ, and each can be had again."""
    if sampling.seed is None or sample == 0:
        return sampling
    seed = sampling.seed + sample
    return msgspec.structs.replace(sampling, seed=seed if seed <= INT64_MAX else seed - 2**64)


def token_limit(wanted: int | None, num_prompt: int, max_model_len: int, strict: bool, param: str) -> int:
    """How many tokens may be generated after a prompt of `num_prompt`: what is wanted, as far as there is room.

    Raises ServingError for a prompt that leaves no room (`param` is where it came from) and, when `strict`, for a
    wish that does not fit.
    """
    room = max_model_len - num_prompt
    if room < (0 if wanted == 0 else 1):
        raise too_long(max_model_len, f"the prompt has {num_prompt} tokens", param)
    if wanted is None:
        return room
    if strict and wanted > room:
        raise too_long(max_model_len, f"the prompt has {num_prompt} tokens and max_tokens is {wanted}", param)
    return min(wanted, room)


def too_long(max_model_len: int, what: str, param: str) -> ServingError:
    message = f"This model's maximum context length is {max_model_len} tokens, but {what}."
    return invalid("context_length_exceeded", param, message)


def _bad_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is tokenized at the start of a text and, with a space before it, inside one."""
    forms = (form for word in words for form in (word, " " + word.lstrip()))
    tokens = (tuple(tokenizer.encode(form, add_special_tokens=False)) for form in forms)
    return tuple(dict.fromkeys(ids for ids in tokens if ids))


def _prompt_logprobs(sampling: SamplingParams, echo_logprobs: bool) -> int | None:
    wishes = (sampling.prompt_logprobs, sampling.logprobs if echo_logprobs else None)
    return max((wish for wish in wishes if wish is not None), default=None)
