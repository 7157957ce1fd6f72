"""Rotary position tables for each kind of scaling."""

from math import ceil, floor, log, pi, sqrt

import torch

from backends.lm.config import Rope


def rope_tables(rope: Rope, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each (length, dim / 2) float32, for positions 0 to `length` - 1 of sequences up to `length`.

    Kinds whose frequencies depend on the sequence's length (dynamic, longrope) take the longest, `length`: keys in
    the pool are rotated once and serve every later query, so frequencies cannot change as a sequence grows. Up to the
    trained length they are transformers' own.
    """
    frequencies, factor = _frequencies(rope, length)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return angles.cos() * factor, angles.sin() * factor


def _frequencies(rope: Rope, length: int) -> tuple[torch.Tensor, float]:
    """Frequencies (dim / 2,) float32 and what cos and sin are multiplied by."""
    if rope.kind == "dynamic":
        return _dynamic(rope, length), 1.0
    if rope.kind == "longrope":
        return _longrope(rope, length)
    plain = _plain(rope, rope.theta)
    if rope.divisors:
        plain = plain / torch.tensor(rope.divisors, dtype=torch.float32)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain), _yarn_factor(rope)
    return plain, 1.0


def _exponents(rope: Rope) -> torch.Tensor:
    return torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim


def _plain(rope: Rope, theta: float) -> torch.Tensor:
    return 1.0 / theta ** _exponents(rope)


def _dynamic(rope: Rope, length: int) -> torch.Tensor:
    """NTK-aware: a larger base (bloc97, emozilla) once sequences pass the trained length."""
    stretch = rope.factor * max(length, rope.max_length) / rope.max_length - (rope.factor - 1)
    return _plain(rope, rope.theta * stretch ** (rope.dim / (rope.dim - 2)))


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long wavelengths divided by the factor, short ones kept, a smooth change between."""
    wavelengths = 2 * pi / plain
    smooth = (rope.original_length / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * plain / rope.factor + smooth * plain


def _yarn(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): dimensions that turn often are kept, slow ones divided by the factor."""
    low, high = (_dimension_turning(rope, turns) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = (torch.arange(rope.dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    slow = ramp.clamp(0, 1)
    return plain / rope.factor * slow + plain * (1 - slow)


def _dimension_turning(rope: Rope, turns: float) -> float:
    """The dimension whose angle makes `turns` full turns over the trained length."""
    return rope.dim * log(rope.original_length / (turns * 2 * pi)) / (2 * log(rope.theta))


def _yarn_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(rope: Rope, length: int) -> tuple[torch.Tensor, float]:
    """LongRoPE (arXiv 2402.13753): a divisor a dimension, one set for short sequences and one for long."""
    factors = rope.long_factor if length > rope.original_length else rope.short_factor
    frequencies = 1.0 / (torch.tensor(factors, dtype=torch.float32) * rope.theta ** _exponents(rope))
    if rope.attention_factor is not None:
        return frequencies, rope.attention_factor
    if rope.factor <= 1:
        return frequencies, 1.0
    return frequencies, sqrt(1 + log(rope.factor) / log(rope.original_length))
