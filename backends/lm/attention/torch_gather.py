"""Paged attention in plain torch: gather a sequence's keys and values, then two products. Right everywhere."""

from math import prod

import numpy as np
import torch

from backends.lm.ops import AttentionBatch, AttentionSpec


class GatherAttention:
    """One layer's pool, (slots, kv heads, D) each for keys and values, and attention over it.

    Sequences are taken one by one, so what is beside one never changes its result.
    """

    def __init__(
        self, spec: AttentionSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._spec = spec
        self._block_size = block_size
        shape = (num_blocks * block_size, spec.num_kv_heads, spec.head_dim)
        self._keys, self._values = (_zeros(shape, dtype, device) for _ in range(2))

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        slots = torch.from_numpy(batch.slots).to(q.device)
        self._keys.index_copy_(0, slots, k)
        self._values.index_copy_(0, slots, v)
        out = torch.empty_like(q)
        for s in range(len(batch.context_lens)):
            start, end = int(batch.query_starts[s]), int(batch.query_starts[s + 1])
            out[start:end] = self._attend(q[start:end], batch, s)
        return out.flatten(1)

    def _attend(self, q: torch.Tensor, batch: AttentionBatch, s: int) -> torch.Tensor:
        """Queries (n, heads, D) of sequence s, its last n tokens -> (n, heads, D)."""
        spec, length, n = self._spec, int(batch.context_lens[s]), len(q)
        slots = self._slots(batch, s, length).to(q.device)
        keys, values = self._keys[slots].transpose(0, 1), self._values[slots].transpose(0, 1)  # (kv heads, length, D)
        # query heads of one group as rows beside each other: (kv heads, group * n, D)
        grouped = q.view(n, spec.num_kv_heads, -1, spec.head_dim).permute(1, 2, 0, 3).flatten(1, 2)
        scores = (grouped @ keys.transpose(1, 2)).float() * spec.scale
        if spec.softcap:
            scores = torch.tanh(scores / spec.softcap) * spec.softcap
        scores = scores.view(spec.num_kv_heads, -1, n, length) + self._mask(n, length).to(q.device)
        weights = scores.softmax(-1).to(values.dtype).view(spec.num_kv_heads, -1, length)
        out = (weights @ values).view(spec.num_kv_heads, -1, n, spec.head_dim)
        return out.permute(2, 0, 1, 3).reshape(n, spec.num_heads, spec.head_dim)

    def _slots(self, batch: AttentionBatch, s: int, length: int) -> torch.Tensor:
        blocks = torch.from_numpy(batch.block_table[s, : -(-length // self._block_size)]).long()
        within = torch.arange(self._block_size)
        return (blocks[:, None] * self._block_size + within).flatten()[:length]

    def _mask(self, n: int, length: int) -> torch.Tensor:
        """(n, length): 0 where a query may look, -inf at later tokens and before the window."""
        behind = torch.arange(length - n, length)[:, None] - torch.arange(length)
        hidden = behind < 0
        if self._spec.window:
            hidden |= behind >= self._spec.window
        return torch.zeros(n, length).masked_fill_(hidden, float("-inf"))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU, memory that the system hands out as it is first touched: a large idle pool costs nothing."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
