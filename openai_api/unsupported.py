"""Members of a request that are understood and not offered: refused where ignoring them would change the answer."""

from backends.api.errors import ServingError
from openai_api.errors import invalid, unsupported
from openai_api.fields import Fields, kind_of, read_string, wrong_type

# Members whose meaning we do not offer (yet). Ignoring them would change the answer unnoticed.
_REFUSED = (
    "audio",
    "chat_template",
    "function_call",
    "functions",
    "kv_transfer_params",
    "logprob_token_ids",
    "moderation",
    "prompt_embeds",
    "repetition_detection",
    "thinking_token_budget",
    "web_search_options",
)
# Members that are taken and change nothing here.
_WITHOUT_EFFECT = (
    "guided_decoding_backend",
    "length_penalty",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "session_id",
    "store",
    "stream_interval",
    "user",
    "verbosity",
)


def refuse_unsupported(fields: Fields) -> None:
    """Raises ServingError for the first member that asks for what this server cannot do."""
    for name in _REFUSED:
        if fields.raw(name) is not None:
            raise unsupported(fields.param(name), f"'{fields.param(name)}' is not supported by this server")
    for name in _WITHOUT_EFFECT:
        fields.raw(name)
    if fields.flag("use_beam_search"):
        raise unsupported("use_beam_search", "'use_beam_search': beam search is not supported by this server")
    _check_modalities(fields)
    _check_metadata(fields)


def _check_modalities(fields: Fields) -> None:
    for i, modality in enumerate(fields.array("modalities", read_string, 8) or ()):
        if modality != "text":
            raise unsupported(f"modalities[{i}]", "'modalities': only text is supported", "unsupported_value")


def _check_metadata(fields: Fields) -> None:
    value = fields.raw("metadata")
    if value is None:
        return
    if not isinstance(value, dict):
        raise wrong_type("metadata", "an object", value)
    if len(value) > 16:
        raise _bad_metadata(f"expected at most 16 pairs, got {len(value)}")
    if any(len(key) > 64 for key in value):
        raise _bad_metadata("expected keys of at most 64 characters")
    for item in value.values():
        if not isinstance(item, str) or len(item) > 512:
            raise _bad_metadata(f"expected strings of at most 512 characters, got {kind_of(item)}")


def _bad_metadata(message: str) -> ServingError:
    return invalid("invalid_value", "metadata", f"'metadata': {message}")
