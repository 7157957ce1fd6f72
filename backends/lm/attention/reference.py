"""Dense attention in float32, one sequence and one token at a time: what the other kernels are held to."""

import numpy as np
import torch

from backends.lm.ops import AttentionBatch, AttentionSpec


class ReferenceAttention:
    """Keeps keys and values by slot, (slots, kv heads, D) float32. For tests."""

    def __init__(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> None:
        self._spec = spec
        self._block_size = block_size
        shape = (num_blocks * block_size, spec.num_kv_heads, spec.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        spec = self._spec
        slots = torch.from_numpy(batch.slots)
        self._keys[slots], self._values[slots] = k.float(), v.float()
        out = torch.empty(q.shape[0], spec.num_heads, spec.head_dim)
        for s in range(len(batch.context_lens)):
            for token in range(batch.query_starts[s], batch.query_starts[s + 1]):
                position = int(batch.context_lens[s] - (batch.query_starts[s + 1] - token))
                out[token] = self._attend(q[token].float(), batch.block_table[s], position)
        return out.flatten(1).to(q.dtype)

    def _attend(self, q: torch.Tensor, table: np.ndarray, position: int) -> torch.Tensor:
        """(heads, D) for the token at `position`."""
        spec = self._spec
        first = max(0, position + 1 - spec.window) if spec.window else 0
        seen = np.arange(first, position + 1)
        slots = table[seen // self._block_size].astype(np.int64) * self._block_size + seen % self._block_size
        shared = spec.num_heads // spec.num_kv_heads
        keys = self._keys[slots].repeat_interleave(shared, dim=1)
        values = self._values[slots].repeat_interleave(shared, dim=1)
        scores = torch.einsum("hd,nhd->hn", q, keys) * spec.scale
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)
