"""Weight formats of model files, and their values as float32. Numpy only.

A row is a whole number of blocks; the layouts are ggml's `block_q4_0` and so on (ggml-common.h): float16 scales
`d` (and minima `m`), then packed integers. Element i of a 32-block of 4-bit values is the low half of byte i for
i < 16, the high half of byte i - 16 above.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Format:
    """`block` values are stored in `block_bytes` bytes."""

    block: int
    block_bytes: int

    def row_bytes(self, values: int) -> int:
        """Bytes of a row of `values` values, which must be whole blocks."""
        return values // self.block * self.block_bytes


FORMATS: dict[str, Format] = {
    "F32": Format(1, 4),
    "F16": Format(1, 2),
    "BF16": Format(1, 2),
    "Q8_0": Format(32, 34),
    "Q4_0": Format(32, 18),
    "Q4_1": Format(32, 20),
    "Q5_0": Format(32, 22),
    "Q5_1": Format(32, 24),
    "Q4_K": Format(256, 144),
    "Q5_K": Format(256, 176),
    "Q6_K": Format(256, 210),
}


def dequantize_rows(format_name: str, rows: np.ndarray) -> np.ndarray:
    """Raw rows (R, bytes a row) uint8 of one of `FORMATS` -> (R, values a row) float32."""
    layout = FORMATS[format_name]
    blocks = np.ascontiguousarray(rows).reshape(-1, layout.block_bytes)
    return _VALUES[format_name](blocks).reshape(len(rows), -1)


def _f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.view("<f4")


def _f16(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks[:, :2])


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _half(blocks[:, :2])


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _nibbles(blocks[:, 4:]) * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return (_nibbles(blocks[:, 6:]) + _fifth_bits(blocks[:, 2:6]) - np.float32(16)) * _half(blocks[:, :2])


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    values = _nibbles(blocks[:, 8:]) + _fifth_bits(blocks[:, 4:8])
    return values * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """Eight groups of 32; their 6-bit scales and minima are times `d` and `dmin`."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    scales, minima = scales * _half(blocks[:, :2]), minima * _half(blocks[:, 2:4])
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return values * scales[:, :, None] - minima[:, :, None]


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """Q4_K with a fifth bit: bit g of byte i belongs to element i of group g."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    scales, minima = scales * _half(blocks[:, :2]), minima * _half(blocks[:, 2:4])
    groups = np.arange(8, dtype=np.uint8)[:, None]
    high = ((blocks[:, None, 16:48] >> groups) & 1) * np.float32(16)
    values = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) + high
    return values * scales[:, :, None] - minima[:, :, None]


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Sixteen groups of 16. Each half of 128 values has 64 bytes of low nibbles and 32 bytes of high bit pairs."""
    halves = blocks[:, :128].reshape(-1, 2, 64)
    low = np.concatenate([halves & 15, halves >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    values = (low | (high << 4)).astype(np.float32).reshape(-1, 16, 16) - np.float32(32)
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks[:, 208:])
    return values * scales[:, :, None]


def _half(two_bytes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(two_bytes).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)


def _fifth_bits(packed: np.ndarray) -> np.ndarray:
    """Four bytes -> 32 values, 16 where element i's bit i is set."""
    return np.unpackbits(packed, axis=1, bitorder="little") * np.float32(16)


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twelve bytes -> eight scales and eight minima of 6 bits.

    The first four of each are the low 6 bits of bytes 0-3 and 4-7; the last four have their low nibbles in bytes
    8-11 (scale low half, minimum high half) and their top two bits in those of bytes 0-3 and 4-7.
    """
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


_VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
