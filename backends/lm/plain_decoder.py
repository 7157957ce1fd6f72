"""A decoder's layers run operation by operation, for `Ops` that do not fuse them."""

import torch

from backends.lm.config import LmConfig
from backends.lm.ops import AttentionBatch, DecoderLayer, Ops


class PlainDecoder:
    """See `ops.LayerStack`.

    Hidden states travel as a residual stream and the last block's update, added where the next norm reads both.
    """

    def __init__(self, ops: Ops, layers: list[DecoderLayer], final_norm: torch.Tensor, config: LmConfig) -> None:
        self._ops = ops
        self._layers = layers
        self._final_norm = final_norm
        self._eps = config.norm_eps
        self._head_dim = config.head_dim
        self._sizes = [config.q_size, config.kv_size, config.kv_size]

    def __call__(
        self, hidden: torch.Tensor, batch: AttentionBatch, first: int = 0, end: int | None = None
    ) -> torch.Tensor:
        ops, residual = self._ops, hidden
        update: torch.Tensor | None = None
        for layer in self._layers[first:end]:
            x, residual = self._add_norm(update, residual, layer.attn_norm)
            update = self._norm(self._attend(layer, x, batch), layer.post_attn_norm)
            x, residual = self._add_norm(update, residual, layer.ffn_norm)
            update = self._norm(layer.down(ops.gated(layer.gate_up(x), layer.activation)), layer.post_ffn_norm)
        if end is not None and end < len(self._layers):
            return residual if update is None else residual.add_(update)
        return self._add_norm(update, residual, self._final_norm)[0]

    def _attend(self, layer: DecoderLayer, x: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        parts = layer.qkv(x).split(self._sizes, dim=1)
        q, k, v = (part.unflatten(1, (-1, self._head_dim)) for part in parts)
        q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        self._ops.rotary(q, k, layer.cos, layer.sin, batch.positions)
        return layer.o(layer.attention(q, k, v, batch))

    def _add_norm(
        self, update: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if update is None:
            return self._ops.rms_norm(residual, weight, self._eps), residual
        return self._ops.add_rms_norm(update, residual, weight, self._eps)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else self._ops.rms_norm(x, weight, self._eps)
