"""The rotary part of a config.json. Field names are transformers' (`modeling_rope_utils.py`)."""

from dataclasses import replace

from backends.api.errors import Code
from backends.lm.config import Rope
from backends.lm.fields import Fields


def rope_scaling(fields: Fields) -> Fields:
    """Version 5's `rope_parameters`, or the older `rope_scaling`."""
    parameters = fields.section("rope_parameters")
    return parameters if parameters.values else fields.section("rope_scaling")


def read_rope(fields: Fields, scaling: Fields, head_dim: int, theta: float) -> Rope:
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    max_length = fields.integer("max_position_embeddings", 2048)
    rope = Rope(
        dim=head_dim,
        theta=scaling.positive("rope_theta", theta),
        kind="longrope" if kind == "su" else kind,
        max_length=max_length,
    )
    original = fields.integer("original_max_position_embeddings", max_length)
    original = scaling.integer("original_max_position_embeddings", original)
    if rope.kind == "default":
        return rope
    if rope.kind in ("linear", "dynamic"):
        return replace(rope, factor=scaling.positive("factor"))
    if rope.kind == "llama3":
        low, high = scaling.positive("low_freq_factor"), scaling.positive("high_freq_factor")
        factor = scaling.positive("factor")
        return replace(rope, factor=factor, original_length=original, low_freq_factor=low, high_freq_factor=high)
    factor = scaling.positive("factor", max_length / original)
    attention = scaling.positive("attention_factor") if "attention_factor" in scaling else None
    rope = replace(rope, factor=factor, original_length=original, attention_factor=attention)
    if rope.kind == "longrope":
        short, long = scaling.numbers("short_factor", head_dim // 2), scaling.numbers("long_factor", head_dim // 2)
        return replace(rope, short_factor=short, long_factor=long)
    if rope.kind == "yarn":
        return _yarn(rope, scaling)
    raise scaling.error("rope_type", "default, linear, dynamic, llama3, yarn or longrope", Code.UNSUPPORTED)


def _yarn(rope: Rope, scaling: Fields) -> Rope:
    return replace(
        rope,
        beta_fast=scaling.positive("beta_fast", 32.0),
        beta_slow=scaling.positive("beta_slow", 1.0),
        mscale=scaling.number("mscale", 0.0),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
        truncate=scaling.flag("truncate", default=True),
    )


def longest_sequence(rope: Rope, max_length: int) -> int:
    """The longest sequence that makes sense, as vLLM derives it: scaling stretches what was trained."""
    if rope.kind in ("linear", "dynamic"):
        return int(max_length * rope.factor)
    if rope.kind == "yarn":
        return max(max_length, int(rope.original_length * rope.factor))
    return max_length
