"""`LmConfig` from a folder in Hugging Face's layout.

Field names and their defaults are transformers' (`configuration_<family>.py`), both those of version 5
(`rope_parameters`, `layer_types`) and the older ones that most checkpoints carry.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.api.errors import Code, ServingError
from backends.lm.config import LmConfig
from backends.lm.config_rope import longest_sequence, read_rope, rope_scaling
from backends.lm.fields import Fields

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
# what Gemma 3's multimodal checkpoints leave out of their text_config
_GEMMA3_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises ServingError: NOT_FOUND without the file, INVALID when it is not JSON."""
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise ServingError(Code.INVALID, f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_any_json(path: Path) -> Any:
    """Whatever `path` holds. Raises ServingError as `read_json`."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ServingError(Code.NOT_FOUND, f"{path}: no such file") from None
    except (ValueError, OSError) as cause:
        raise ServingError(Code.INVALID, f"{path}: not readable JSON: {cause}") from None


def read_hf_config(folder: Path) -> LmConfig | None:
    """The config of `folder` if its family is one of ours, else None.

    Raises ServingError for a field that is missing or makes no sense, and for quantised checkpoints.
    """
    path = folder / "config.json"
    raw = read_json(path)
    if raw.get("quantization_config"):
        method = Fields(raw, str(path)).section("quantization_config").values.get("quant_method")
        raise ServingError(
            Code.UNSUPPORTED,
            f"{path}: field 'quantization_config': expected plain float weights or a GGUF file, got method {method!r}",
        )
    if raw.get("model_type") == "gemma3":
        raw = {"eos_token_id": raw.get("eos_token_id")} | raw.get("text_config", {}) | {"model_type": "gemma3_text"}
    family = _FAMILIES.get(str(raw.get("model_type")))
    fields = Fields(raw, str(path))
    if family is None or _is_out_of_the_ordinary(fields):
        return None
    config = family(fields)
    return replace(config, eos_token_ids=read_eos_token_ids(folder, raw))


def read_eos_token_ids(folder: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """Where a text ends: generation_config.json's tokens (else config.json's) and the tokenizer's own, the chat's."""
    generation = folder / "generation_config.json"
    found = read_json(generation).get("eos_token_id") if generation.exists() else None
    ids = _ids(found if found is not None else raw.get("eos_token_id"))
    return tuple(sorted({*ids, *_tokenizer_eos(folder)}))


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [x for x in values if isinstance(x, int)]


def _tokenizer_eos(folder: Path) -> list[int]:
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return []
    config = read_json(path)
    eos = config.get("eos_token")
    content = eos.get("content") if isinstance(eos, dict) else eos
    added = config.get("added_tokens_decoder") or {}
    return [int(number) for number, token in added.items() if content is not None and token.get("content") == content]


def _is_out_of_the_ordinary(fields: Fields) -> bool:
    """A variant that our lean code does not compute; transformers' own does."""
    rope = fields.values.get("rope_parameters") or {}
    partial = fields.values.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1.0
    return partial != 1.0 or bool(fields.values.get("use_bidirectional_attention"))


def _common(fields: Fields, **family: Any) -> LmConfig:
    """A plain Llama decoder, with what a family has otherwise in `family`."""
    num_heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", hidden // num_heads)
    num_layers, max_length = fields.integer("num_hidden_layers"), fields.integer("max_position_embeddings", 2048)
    rope = read_rope(fields, rope_scaling(fields), head_dim, fields.positive("rope_theta", 10_000.0))
    values: dict[str, Any] = {
        "architecture": fields.text("model_type"),
        "num_layers": num_layers,
        "hidden": hidden,
        "ffn": fields.integer("intermediate_size"),
        "vocab": fields.integer("vocab_size"),
        "num_heads": num_heads,
        "num_kv_heads": fields.integer("num_key_value_heads", num_heads),
        "head_dim": head_dim,
        "norm_eps": fields.positive("rms_norm_eps", 1e-6),
        "max_positions": longest_sequence(rope, max_length),
        "ropes": (rope,) * num_layers,
        "windows": (0,) * num_layers,
        "attention_scale": head_dim**-0.5,
        "activation": _activation(fields, "hidden_act", "silu"),
        "tied": fields.flag("tie_word_embeddings", default=False),
    }
    config = LmConfig(**values | family)
    if config.num_heads % config.num_kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of {config.num_heads} heads")
    return config


def _llama(fields: Fields) -> LmConfig:
    bias = fields.flag("attention_bias", default=False)
    return _common(fields, qkv_bias=bias, o_bias=bias, mlp_bias=fields.flag("mlp_bias", default=False))


def _mistral(fields: Fields) -> LmConfig:
    window = fields.integer("sliding_window", 0, minimum=0)
    return _common(fields, windows=(window,) * fields.integer("num_hidden_layers"))


def _qwen2(fields: Fields) -> LmConfig:
    return _common(fields, qkv_bias=True, windows=_qwen_windows(fields))


def _qwen3(fields: Fields) -> LmConfig:
    fields = fields.with_defaults({"head_dim": 128})
    bias = fields.flag("attention_bias", default=False)
    return _common(fields, qk_norm=True, qkv_bias=bias, o_bias=bias, windows=_qwen_windows(fields))


def _qwen_windows(fields: Fields) -> tuple[int, ...]:
    num_layers = fields.integer("num_hidden_layers")
    if not fields.flag("use_sliding_window", default=False) or "sliding_window" not in fields:
        return (0,) * num_layers
    first = fields.integer("max_window_layers", 28, minimum=0)
    return _windows(fields, ["full_attention" if i < first else "sliding_attention" for i in range(num_layers)])


def _windows(fields: Fields, pattern: list[str]) -> tuple[int, ...]:
    """A window a layer from `layer_types`, or from the family's `pattern` where the file has none."""
    types = fields.values.get("layer_types") or pattern
    known = {"full_attention": 0, "sliding_attention": fields.integer("sliding_window", 0, minimum=0)}
    if not isinstance(types, list) or len(types) != len(pattern) or not all(kind in known for kind in types):
        raise fields.error("layer_types", f"{len(pattern)} of full_attention, sliding_attention")
    return tuple(known[kind] for kind in types)


def _gemma(fields: Fields) -> LmConfig:
    return _common(_gemma_fields(fields, {}), **_gemma_traits(fields))


def _gemma2(fields: Fields) -> LmConfig:
    fields = _gemma_fields(fields, {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})
    pattern = ["full_attention" if i % 2 else "sliding_attention" for i in range(fields.integer("num_hidden_layers"))]
    return _common(fields, **_gemma_traits(fields), **_gemma_attention(fields), windows=_windows(fields, pattern))


def _gemma3(fields: Fields) -> LmConfig:
    fields = _gemma_fields(fields, _GEMMA3_DEFAULTS)
    num_layers, head_dim = fields.integer("num_hidden_layers"), fields.integer("head_dim")
    every = fields.integer("sliding_window_pattern", 6)
    pattern = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(num_layers)]
    windows = _windows(fields, pattern)
    by_type = fields.section("rope_parameters")
    local_scaling = by_type.section("sliding_attention")
    full_scaling = by_type.section("full_attention") if by_type.values else fields.section("rope_scaling")
    local = read_rope(fields, local_scaling, head_dim, fields.positive("rope_local_base_freq", 1e4))
    full = read_rope(fields, full_scaling, head_dim, fields.positive("rope_theta", 1e6))
    ropes = tuple(local if window else full for window in windows)
    max_positions = fields.integer("max_position_embeddings")
    return _common(
        fields,
        **_gemma_traits(fields),
        **_gemma_attention(fields),
        windows=windows,
        ropes=ropes,
        qk_norm=True,
        max_positions=max_positions,
    )


def _gemma_fields(fields: Fields, defaults: dict[str, Any]) -> Fields:
    """With the defaults of the family in, where a checkpoint leaves them out."""
    return fields.with_defaults({"head_dim": 256, "tie_word_embeddings": True} | defaults)


def _gemma_traits(fields: Fields) -> dict[str, Any]:
    bias = fields.flag("attention_bias", default=False)
    named = "hidden_activation" if "hidden_activation" in fields else "hidden_act"
    activation = _activation(fields, named, "gelu_pytorch_tanh")
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "norm_offset": 1.0,
        "embedding_scale": fields.integer("hidden_size") ** 0.5,
        # the first checkpoints say "gelu" and mean its tanh form
        "activation": "gelu_tanh" if activation == "gelu" else activation,
    }


def _gemma_attention(fields: Fields) -> dict[str, Any]:
    return {
        "sandwich_norms": True,
        "attention_scale": fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": fields.number("attn_logit_softcapping", 0.0),
        "logit_softcap": fields.number("final_logit_softcapping", 0.0),
    }


def _activation(fields: Fields, name: str, default: str) -> str:
    activation = _ACTIVATIONS.get(fields.text(name, default))
    if activation is None:
        raise fields.error(name, f"one of {', '.join(_ACTIVATIONS)}", Code.UNSUPPORTED)
    return activation


_FAMILIES: dict[str, Callable[[Fields], LmConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
