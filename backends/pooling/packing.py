"""Rows of unequal length as one batch: packed end to end for what treats each token alone, padded only for attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backends.pooling.runner import Row

_EVERY_LENGTH = 64  # tokens, up to which a batch has the length it has
_MULTIPLE = 16
_SLACK = 8  # tokens of padding that cost less than one more call


@dataclass(frozen=True, slots=True)
class Packed:
    """`tokens` and `types` (T,) of all rows one after another; row i is [starts[i], starts[i + 1])."""

    tokens: np.ndarray
    types: np.ndarray
    positions: np.ndarray
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)


def pack(rows: Sequence[Row]) -> Packed:
    """Tokens beyond the last row, all 0, fill up to one of few lengths, for each of which a library makes its kernels
    anew. They belong to no row."""
    lengths = [len(row.tokens) for row in rows]
    starts = np.cumsum([0, *lengths])
    total = int(starts[-1])
    if total > _EVERY_LENGTH:
        total = -(-total // _MULTIPLE) * _MULTIPLE
    tokens, types, positions = (np.zeros(total, np.int64) for _ in range(3))
    for row, start, length in zip(rows, starts, lengths, strict=False):
        tokens[start : start + length] = row.tokens
        types[start + row.second : start + length] = 1
        positions[start : start + length] = np.arange(length)
    return Packed(tokens, types, positions, starts)


def similar(lengths: Sequence[int], max_tokens: int | None = None) -> list[list[int]]:
    """Indices of rows in groups that are worth padding to the longest, which comes first in each.

    A group's shortest row has at least three quarters of its longest's tokens, a few aside. `max_tokens` bounds a
    group's rows times its longest, one row always being allowed.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[groups[-1][0]] if groups else 0
        fits = groups and 4 * (lengths[index] + _SLACK) >= 3 * longest
        if fits and (max_tokens is None or longest * (len(groups[-1]) + 1) <= max_tokens):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


@dataclass(frozen=True, slots=True)
class PaddedGroup:
    """Rows that attend together. `take` (rows, longest) are places in the packed batch, whose padding is masked.

    `put` are the places (in the packed batch) of `kept` (in the padded one, flat). `mask` None: nothing is padded.
    """

    take: torch.Tensor
    put: torch.Tensor
    kept: torch.Tensor
    mask: torch.Tensor | None


def padded_groups(packed: Packed, dtype: torch.dtype, device: torch.device) -> list[PaddedGroup]:
    lengths = packed.lengths
    return [_padded(packed, np.array(group), dtype, device) for group in similar(lengths.tolist())]


def _padded(packed: Packed, rows: np.ndarray, dtype: torch.dtype, device: torch.device) -> PaddedGroup:
    lengths = packed.lengths[rows]
    width = np.arange(lengths[0])
    is_real = width < lengths[:, None]
    take = np.where(is_real, packed.starts[rows][:, None] + width, packed.starts[rows][:, None])
    mask = None
    if not is_real.all():
        mask = torch.zeros(len(rows), 1, 1, len(width), dtype=dtype)
        mask.masked_fill_(torch.from_numpy(~is_real)[:, None, None], torch.finfo(dtype).min)
        mask = mask.to(device)
    put, kept = (torch.from_numpy(x).to(device) for x in (take[is_real], np.flatnonzero(is_real)))
    return PaddedGroup(torch.from_numpy(take).to(device), put, kept, mask)
