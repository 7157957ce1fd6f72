"""Uniform numbers by counter: the number for (seed, position) is a function of these two alone.

So a request's tokens do not depend on its neighbours, on chunking, or on being computed again after preemption.
The function is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): the
position walks the generator whose state is the seed, itself mixed once so that near seeds lie far apart.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def as_seed(seed: int) -> int:
    """Any integer as the 64 bits that are used of it."""
    return seed & _MASK


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """(N,) uint64 seeds and (N,) positions -> (N,) float64 in [0, 1), multiples of 2**-53."""
    steps = positions.astype(np.uint64) + np.uint64(1)
    bits = _mixed(_mixed(seeds.astype(np.uint64)) + steps * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
