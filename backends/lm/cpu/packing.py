"""Weights in the order the micro-kernels read them: tiles of 16 output columns, groups of 32 input features.

Quantised weights are taken over value by value; only where their bytes lie changes. A group of a tile is

    q4    4 x 64 bytes (16 columns x 4 bytes; the low halves are features 0..15, the high ones 16..31), 16 scales d
          and 16 minima m as float16
    q8    8 x 64 bytes (16 columns x 4 features), 16 scales d as float16
    bf16  16 x 64 bytes (16 columns x 2 features)
    f32   32 x 64 bytes (16 columns)

Missing columns and features are zero.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from backends.lm.cpu.memory import Arena
from backends.lm.cpu.tiles import FORMATS, GROUP, TILE

if TYPE_CHECKING:
    from backends.lm.weights import Weight

# GGUF quantisation -> the format that takes its values over
_FORMAT_OF = {"Q4_0": "q4", "Q4_1": "q4", "Q4_K": "q4", "Q8_0": "q8"}


def format_for(weights: "list[Weight]", dtype: str, has_vnni: bool, quantized: bool) -> str:
    """The one decision which kernel computes a product of `weights`: a key of FORMATS.

    `dtype` float32 is exact arithmetic for every weight. Otherwise weights in 4 or 8 bits stay so, if all that
    share the input have one format and the processor multiplies bytes; everything else becomes bfloat16.
    """
    if dtype == "float32":
        return "f32"
    formats = {_FORMAT_OF.get(weight.format, "bf16") for weight in weights}
    if has_vnni and quantized and len(formats) == 1 and all(w.shape[1] % GROUP == 0 for w in weights):
        return formats.pop()
    return "bf16"


def pack(form: str, weights: "list[Weight]", arena: Arena) -> np.ndarray:
    """The tiles of `weights`, their outputs side by side: uint8 (tiles, groups, tile bytes), 64-byte aligned."""
    if form == "q4":
        return _pack_q4(np.concatenate([_nibbles(w) for w in weights]), arena)
    if form == "q8":
        return _pack_q8(np.concatenate([_blocks(w, 34) for w in weights]), arena)
    dense = torch.cat([weight.dequantize(torch.float32) for weight in weights])
    return _pack_dense(form, dense, arena)


def _pack_dense(form: str, weight: torch.Tensor, arena: Arena) -> np.ndarray:
    """(out, in) float32 as bf16 or f32 tiles."""
    num_out, num_in = weight.shape
    tiles, groups = -(-num_out // TILE), -(-num_in // GROUP)
    padded = torch.zeros(tiles * TILE, groups * GROUP, dtype=torch.bfloat16 if form == "bf16" else torch.float32)
    padded[:num_out, :num_in] = weight
    # bfloat16 features travel in pairs: one 4-byte unit a column in both formats
    units = padded.view(torch.int32).numpy().reshape(tiles, TILE, groups, -1)
    packed = _tiles(tiles, groups, FORMATS[form].tile_bytes, arena)
    packed.view(np.int32).reshape(tiles, groups, -1, TILE)[:] = units.transpose(0, 2, 3, 1)
    return packed


def _pack_q4(blocks: np.ndarray, arena: Arena) -> np.ndarray:
    """(out, groups, 20) bytes of d, m and 16 pairs of values."""
    blocks = _whole_tiles(blocks)
    tiles, _, groups, _ = blocks.shape
    packed = _tiles(tiles, groups, FORMATS["q4"].tile_bytes, arena)
    values = np.ascontiguousarray(blocks[..., 4:]).view(np.uint32)  # (tiles, 16, groups, 4)
    packed[..., :256].view(np.uint32).reshape(tiles, groups, 4, TILE)[:] = values.transpose(0, 2, 3, 1)
    for start, field in ((256, 0), (288, 2)):
        scales = np.ascontiguousarray(blocks[..., field : field + 2]).view(np.uint16)[..., 0]
        packed[..., start : start + 32].view(np.uint16)[:] = scales.transpose(0, 2, 1)
    return packed


def _pack_q8(blocks: np.ndarray, arena: Arena) -> np.ndarray:
    """(out, groups, 34) bytes of d and 32 int8."""
    blocks = _whole_tiles(blocks)
    tiles, _, groups, _ = blocks.shape
    packed = _tiles(tiles, groups, FORMATS["q8"].tile_bytes, arena)
    values = np.ascontiguousarray(blocks[..., 2:] ^ 0x80).view(np.uint32)  # (tiles, 16, groups, 8)
    packed[..., :512].view(np.uint32).reshape(tiles, groups, 8, TILE)[:] = values.transpose(0, 2, 3, 1)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.uint16)[..., 0]
    packed[..., 512:].view(np.uint16)[:] = scales.transpose(0, 2, 1)
    return packed


def _tiles(tiles: int, groups: int, tile_bytes: int, arena: Arena) -> np.ndarray:
    return arena.take(tiles * groups * tile_bytes).reshape(tiles, groups, tile_bytes)


def _whole_tiles(blocks: np.ndarray) -> np.ndarray:
    """(out, groups, bytes) -> (tiles, 16, groups, bytes), with blocks of zero scale for missing columns."""
    missing = -len(blocks) % TILE
    if missing:
        blocks = np.concatenate([blocks, np.zeros((missing, *blocks.shape[1:]), dtype=np.uint8)])
    return blocks.reshape(-1, TILE, *blocks.shape[1:])


def _blocks(weight: "Weight", size: int) -> np.ndarray:
    """A weight's bytes as (out, blocks, size)."""
    return weight.data.reshape(weight.shape[0], -1, size)


def _nibbles(weight: "Weight") -> np.ndarray:
    """A 4-bit weight as Q4_1 blocks: (out, groups, 20) bytes."""
    return _TO_Q4_1[weight.format](weight)


def _from_q4_1(weight: "Weight") -> np.ndarray:
    return _blocks(weight, 20)


def _from_q4_0(weight: "Weight") -> np.ndarray:
    """w = d * (q - 8), so m = -8 d: exact in float16."""
    blocks = _blocks(weight, 18)
    d = np.ascontiguousarray(blocks[..., :2]).view(np.float16)
    return np.concatenate([blocks[..., :2], (d * np.float16(-8)).view(np.uint8), blocks[..., 2:]], axis=-1)


def _from_q4_k(weight: "Weight") -> np.ndarray:
    """256 values share d and dmin; each 32 of them have a 6-bit scale and minimum: w = d * sc * q - dmin * mn.

    The products d * sc and dmin * mn are rounded to float16 (11 bits, beside values of 4).
    """
    blocks = _blocks(weight, 144)
    d, dmin = (np.ascontiguousarray(blocks[..., i : i + 2]).view(np.float16).astype(np.float32) for i in (0, 2))
    packed = blocks[..., 4:16]
    low, mid, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    minimum = np.concatenate([mid & 63, (high >> 4) | (mid >> 6) << 4], axis=-1)
    # 4 runs of 32 bytes: low halves are one group, high halves the next
    runs = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    values = np.concatenate([runs & 15, runs >> 4], axis=-2).reshape(*blocks.shape[:2], 8, 32)
    result = np.empty((*blocks.shape[:2], 8, 20), dtype=np.uint8)
    result[..., 0:2] = (d * scale).astype(np.float16)[..., None].view(np.uint8)
    result[..., 2:4] = (-dmin * minimum).astype(np.float16)[..., None].view(np.uint8)
    result[..., 4:] = values[..., :16] | values[..., 16:] << 4
    return result.reshape(len(blocks), -1, 20)


_TO_Q4_1: "dict[str, Callable[[Weight], np.ndarray]]" = {
    "Q4_1": _from_q4_1,
    "Q4_0": _from_q4_0,
    "Q4_K": _from_q4_k,
}
