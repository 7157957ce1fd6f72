"""`LmConfig` from a GGUF's metadata. Keys are those of the gguf package's `constants.py`; what the format leaves
out (Gemma's patterns and scales) is llama.cpp's `llama-model.cpp`."""

from dataclasses import replace
from typing import Any

import numpy as np

from backends.api.errors import Code, ServingError
from backends.lm.config import LmConfig, Rope
from backends.lm.dequantize import dequantize_rows
from backends.lm.fields import Fields
from backends.lm.gguf import GgufFile

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")
_TURN_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"})
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def read_gguf_config(file: GgufFile) -> LmConfig:
    """Raises ServingError: UNSUPPORTED for an architecture that is not ours, INVALID for fields that make no sense."""
    fields = Fields(file.metadata, str(file.path))
    architecture = fields.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise fields.error("general.architecture", f"one of {', '.join(ARCHITECTURES)}", Code.UNSUPPORTED)
    prefix = f"{architecture}."
    own = Fields({k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}, fields.where)
    if own.integer("expert_count", 0, minimum=0):
        raise own.error("expert_count", "a dense model", Code.UNSUPPORTED)
    config = _common(file, own, architecture)
    if architecture.startswith("gemma"):
        config = _gemma(config, own)
    return config


def _common(file: GgufFile, own: Fields, architecture: str) -> LmConfig:
    num_heads, hidden = own.integer("attention.head_count"), own.integer("embedding_length")
    num_layers, context = own.integer("block_count"), own.integer("context_length")
    head_dim = own.integer("attention.key_length", hidden // num_heads)
    if own.integer("attention.value_length", head_dim) != head_dim:
        raise own.error("attention.value_length", f"{head_dim}, as keys have", Code.UNSUPPORTED)
    if own.integer("rope.dimension_count", head_dim) != head_dim:
        raise own.error("rope.dimension_count", f"{head_dim}, the size of a head", Code.UNSUPPORTED)
    rope = _rope(file, own, head_dim)
    return LmConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden=hidden,
        ffn=own.integer("feed_forward_length"),
        vocab=_vocab(file),
        num_heads=num_heads,
        num_kv_heads=own.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        norm_eps=own.positive("attention.layer_norm_rms_epsilon"),
        max_positions=context,
        ropes=(rope,) * num_layers,
        windows=(own.integer("attention.sliding_window", 0, minimum=0),) * num_layers,
        attention_scale=head_dim**-0.5,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors or architecture == "qwen2",
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        tied="output.weight" not in file.tensors,
        eos_token_ids=_eos_token_ids(file),
    )


def _gemma(config: LmConfig, own: Fields) -> LmConfig:
    """Norm weights carry their offset of 1 in GGUF already."""
    config = replace(
        config,
        activation="gelu_tanh",
        embedding_scale=config.hidden**0.5,
        attention_softcap=own.number("attn_logit_softcapping", 0.0),
        logit_softcap=own.number("final_logit_softcapping", 0.0),
    )
    if config.architecture == "gemma":
        return config
    is_27b = config.num_layers == (_GEMMA2_27B_LAYERS if config.architecture == "gemma2" else _GEMMA3_27B_LAYERS)
    scale = (config.hidden // config.num_heads) ** -0.5 if is_27b else config.attention_scale
    every = own.integer("attention.sliding_window_pattern", 2 if config.architecture == "gemma2" else 6)
    window = own.integer("attention.sliding_window", 4096 if config.architecture == "gemma2" else 1024)
    windows = tuple(window if (i + 1) % every else 0 for i in range(config.num_layers))
    config = replace(config, attention_scale=scale, windows=windows, sandwich_norms=True)
    if config.architecture == "gemma2":
        return config
    local = Rope(config.head_dim, own.positive("rope.freq_base_swa", 10_000.0), max_length=config.max_positions)
    return replace(config, ropes=tuple(local if window else config.ropes[0] for window in windows))


def _rope(file: GgufFile, own: Fields, head_dim: int) -> Rope:
    kind = own.text("rope.scaling.type", "none")
    context = own.integer("context_length")
    rope = Rope(head_dim, own.positive("rope.freq_base", 10_000.0), max_length=context, divisors=_divisors(file))
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise own.error("rope.scaling.type", "none, linear or yarn", Code.UNSUPPORTED)
    factor = own.positive("rope.scaling.factor")
    original = own.integer("rope.scaling.original_context_length", context)
    return replace(rope, kind=kind, factor=factor, original_length=original)


def _divisors(file: GgufFile) -> tuple[float, ...]:
    """Llama 3's scaling comes as a divisor a frequency."""
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None or tensor.format != "F32":
        return ()
    return tuple(float(x) for x in dequantize_rows("F32", tensor.data[None])[0])


def _vocab(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ServingError(Code.INVALID, f"{file.path}: tensor 'token_embd.weight': expected to be there, got nothing")
    return embedding.shape[0]


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    """The tokens that end a text, and by name those that end a chat's turn."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    given: list[Any] = [file.metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    tokens, kinds = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(kinds, np.ndarray):
        given += [i for i in np.flatnonzero(kinds == 3).tolist() if tokens[i] in _TURN_ENDS]
    return tuple(sorted({int(number) for number in given if isinstance(number, int)}))
