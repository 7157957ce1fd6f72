"""`sampling_parameters` of Triton's vLLM backend: JSON with the names of vLLM's SamplingParams, checked.

Numbers and flags may also come as text ("0.5", "true"), which that backend's users send. Defaults are vLLM's, so an
answer has 16 tokens unless more is asked for.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backends.api.errors import Code, ServingError
from backends.api.request import (
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    Parameter,
    SamplingParams,
)

_INT64 = 2**63
_Count = Annotated[int, Meta(ge=0, lt=2**31)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Stop = Annotated[str, Meta(min_length=1, max_length=256)]
_Tokens = Annotated[list[_Count], Meta(max_length=1024)]


class LanguageSampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a request may say. `max_tokens` None is as many as there is room for; `seed` -1 is none."""

    n: Annotated[int, Meta(ge=1, le=128)] = 1
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = 16
    min_tokens: _Count = 0
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] = 1.0
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    seed: Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=16)] | None = None
    stop_token_ids: _Tokens | None = None
    logit_bias: Annotated[dict[_Count, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)] | None = None
    allowed_token_ids: Annotated[_Tokens, Meta(min_length=1)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def read_sampling(text: bytes | None, parameters: Mapping[str, Parameter]) -> LanguageSampling:
    """From the input's JSON, or where there is none from those request parameters that have a name of ours.

    Raises ServingError(INVALID) with the field at fault.
    """
    try:
        if text is not None:
            settings = msgspec.json.decode(text, type=LanguageSampling, strict=False)
        else:
            known: dict[str, Any] = {
                name: parameters[name] for name in LanguageSampling.__struct_fields__ if name in parameters
            }
            settings = msgspec.convert(known, LanguageSampling, strict=False)
    except msgspec.MsgspecError as error:
        raise _invalid(str(error)) from error
    for name in LanguageSampling.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, float) and not isfinite(value):
            raise _invalid(f"Expected a finite number, got {value} - at `$.{name}`")
    if settings.max_tokens is not None and settings.min_tokens > settings.max_tokens:
        raise _invalid(f"Expected min_tokens <= max_tokens {settings.max_tokens}, got {settings.min_tokens}")
    return settings


def sampling_params(
    settings: LanguageSampling, *, max_tokens: int, vocab_size: int, choice: int, wants_logprobs: bool
) -> SamplingParams:
    """The settings of choice number `choice`, which may have `max_tokens`. Raises ServingError(INVALID) for a token id
    outside the vocabulary."""
    named = (*(settings.stop_token_ids or ()), *(settings.logit_bias or ()), *(settings.allowed_token_ids or ()))
    for token in named:
        if token >= vocab_size:
            raise _invalid(f"token id {token} is outside the model's vocabulary of {vocab_size}")
    seed = None if settings.seed in (None, -1) else settings.seed
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(settings.min_tokens, max_tokens),
        temperature=settings.temperature,
        top_k=min(max(0, settings.top_k), vocab_size),
        top_p=settings.top_p,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        logit_bias=settings.logit_bias or {},
        allowed_token_ids=None if settings.allowed_token_ids is None else tuple(settings.allowed_token_ids),
        stop_token_ids=tuple(settings.stop_token_ids or ()),
        ignore_eos=settings.ignore_eos,
        seed=seed if seed is None else (seed + choice + _INT64) % (2 * _INT64) - _INT64,
        logprobs=0 if settings.logprobs is None and wants_logprobs else settings.logprobs,
    )


def _invalid(text: str) -> ServingError:
    return ServingError(Code.INVALID, f"'sampling_parameters': {text}", param="sampling_parameters")
