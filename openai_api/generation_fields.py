"""The members that chats, responses and text completions share: how tokens are chosen, where they stop, what comes back with them."""

from dataclasses import dataclass

import msgspec

from backends.api.request import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY, SamplingParams
from openai_api.errors import invalid, unsupported
from openai_api.fields import (
    INT64_MAX,
    INT64_MIN,
    Fields,
    read_array,
    read_integer,
    read_number,
    read_string,
    wrong_type,
)
from openai_api.options import OpenAIOptions
from openai_api.structured import Constraint
from openai_api.unsupported import refuse_unsupported

MAX_LOGPROBS = 20
MAX_STOP_STRINGS, MAX_STOP_LENGTH = 16, 256
MAX_TOKEN_LIST = 1024  # entries of logit_bias, stop_token_ids and bad_words
_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """A checked request, prompt aside. `model` is "" where the request names none, `max_tokens` None where it sets none.

    `sampling` holds everything that does not depend on the prompt or the vocabulary; its `max_tokens`, `bad_words`
    and the seed of each choice are settled by `sampling.py`. `truncate` -1 keeps what leaves room for one token.
    `constraints` are the grammars still to be checked, that of `sampling` among them.
    """

    model: str
    n: int
    max_tokens: int | None
    sampling: SamplingParams
    stop: tuple[str, ...]
    bad_words: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    return_token_ids: bool
    tokens_as_ids: bool
    add_special_tokens: bool
    truncate: int | None
    truncate_left: bool
    priority: int
    cache_salt: str
    request_id: str
    echo_service_tier: bool
    constraints: tuple[Constraint, ...] = ()


def read_generation(
    fields: Fields,
    limits: OpenAIOptions,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    add_special_tokens: bool,
    constraint: Constraint | None,
) -> GenerationOptions:
    """Read the shared members; the arguments are those whose names or defaults the endpoints do not share."""
    refuse_unsupported(fields)
    stream = fields.flag("stream")
    include_usage, continuous_usage = _stream_options(fields, stream)
    sampling = _sampling(fields, max_tokens, logprobs, stream)
    return GenerationOptions(
        model=fields.string("model", 1024) or "",
        n=fields.integer("n", 1, limits.max_choices) or 1,
        max_tokens=max_tokens,
        sampling=sampling if constraint is None else msgspec.structs.replace(sampling, grammar=constraint[0]),
        stop=_stop(fields),
        bad_words=tuple(fields.array("bad_words", _short_text, MAX_TOKEN_LIST) or ()),
        include_stop=fields.flag("include_stop_str_in_output"),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        spaces_between_special_tokens=fields.flag("spaces_between_special_tokens", True),
        stream=stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        echo=fields.flag("echo"),
        return_token_ids=fields.flag("return_token_ids"),
        tokens_as_ids=fields.flag("return_tokens_as_token_ids"),
        add_special_tokens=fields.flag("add_special_tokens", add_special_tokens),
        truncate=fields.truncation(),
        truncate_left=fields.choice("truncation_side", ("left", "right")) != "right",
        priority=fields.integer("priority", -_INT32, _INT32) or 0,
        cache_salt=_cache_salt(fields),
        request_id=fields.string("request_id", 1024) or "",
        echo_service_tier=fields.string("service_tier", 64) is not None,
        constraints=() if constraint is None else (constraint,),
    )


def _sampling(fields: Fields, max_tokens: int | None, logprobs: int | None, stream: bool) -> SamplingParams:
    min_tokens = fields.integer("min_tokens", 0, _INT32) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        message = f"'min_tokens': expected at most max_tokens, which is {max_tokens}, got {min_tokens}"
        raise invalid("integer_above_max_value", fields.param("min_tokens"), message)
    seed = fields.integer("seed", INT64_MIN, INT64_MAX)
    allowed = fields.array("allowed_token_ids", read_integer, INT64_MAX, min_length=1)
    return SamplingParams(
        max_tokens=max_tokens or 0,
        min_tokens=min_tokens,
        temperature=_or(fields.number("temperature", 0, 2), 1.0),
        top_k=max(0, fields.integer("top_k", -1) or 0),
        top_p=_or(fields.number("top_p", 0, 1, low_is_out=True), 1.0),
        min_p=_or(fields.number("min_p", 0, 1), 0.0),
        repetition_penalty=_or(
            fields.number("repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY), 1.0
        ),
        presence_penalty=_or(fields.number("presence_penalty", -2, 2), 0.0),
        frequency_penalty=_or(fields.number("frequency_penalty", -2, 2), 0.0),
        logit_bias=_logit_bias(fields),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        stop_token_ids=tuple(fields.array("stop_token_ids", read_integer, MAX_TOKEN_LIST) or ()),
        ignore_eos=fields.flag("ignore_eos"),
        seed=None if seed == -1 else seed,  # -1 asks for no seed, as in vLLM
        logprobs=logprobs,
        prompt_logprobs=_prompt_logprobs(fields, stream),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stream_options(fields: Fields, stream: bool) -> tuple[bool, bool]:
    """(include_usage, continuous_usage_stats)"""
    options = fields.child("stream_options")
    if options is None:
        return False, False
    if not stream:
        message = "'stream_options' is only allowed together with 'stream': true"
        raise invalid("invalid_value", fields.param("stream_options"), message)
    continuous = options.flag("continuous_usage_stats")
    return options.flag("include_usage"), continuous


def _stop(fields: Fields) -> tuple[str, ...]:
    value, param = fields.raw("stop"), fields.param("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise wrong_type(param, "a string or an array of strings", value)
    return tuple(read_array(value, param, lambda item, _: _short_text(item, param), MAX_STOP_STRINGS))


def _short_text(value: object, param: str) -> str:
    return read_string(value, param, MAX_STOP_LENGTH, min_length=1)


def _logit_bias(fields: Fields) -> dict[int, float]:
    value, param = fields.raw("logit_bias"), fields.param("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    if len(value) > MAX_TOKEN_LIST:
        message = f"'{param}': expected at most {MAX_TOKEN_LIST} entries, got {len(value)}"
        raise invalid("invalid_value", param, message)
    return {_token_key(key, param): read_number(bias, param, -100, 100) for key, bias in value.items()}


def _token_key(key: str, param: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 18):
        raise invalid("invalid_value", param, f"'{param}': keys must be token ids, got '{key[:24]}'")
    return int(key)


def _prompt_logprobs(fields: Fields, stream: bool) -> int | None:
    count = fields.integer("prompt_logprobs", -1, MAX_LOGPROBS)
    param = fields.param("prompt_logprobs")
    if count == -1:
        message = f"'{param}': the whole vocabulary is not offered, at most {MAX_LOGPROBS}"
        raise unsupported(param, message, "unsupported_value")
    if count is not None and stream:
        raise unsupported(param, f"'{param}' is not offered together with 'stream': true")
    return count


def _cache_salt(fields: Fields) -> str:
    salt = fields.string("cache_salt", 128, min_length=1) or ""
    if any(letter in "@/\\\0" for letter in salt):
        param = fields.param("cache_salt")
        raise invalid("invalid_value", param, f"'{param}': expected no '@', '/', '\\' or NUL")
    return salt
