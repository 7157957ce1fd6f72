"""The decoder of the Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and Gemma 3 families, written over `Ops`.

One layer, with (sandwich) the parts that only Gemma 2 and 3 have, and [qk] those of Qwen3 and Gemma 3:
    x += (sandwich norm) o(attention(rope([qk norm] q), rope([qk norm] k), v)) of norm(x)
    x += (sandwich norm) down(act(gate) * up) of norm(x)
"""

from collections.abc import Callable

import numpy as np
import torch

from backends.lm.checkpoint import Checkpoint
from backends.lm.config import LmConfig, Rope
from backends.lm.ops import Attention, AttentionBatch, AttentionSpec, DecoderLayer, Linear, Ops
from backends.lm.rope import rope_tables

LayerProgress = Callable[[int, int], None]
"""Called with how many layers are loaded, and of how many."""

Tables = tuple[torch.Tensor, torch.Tensor]


def attention_specs(config: LmConfig) -> list[AttentionSpec]:
    """One a layer."""
    return [
        AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
        )
        for window in config.windows
    ]


class Decoder:
    """Weights and block pools of one model. `max_length` is the longest sequence it will see."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: Ops,
        *,
        num_blocks: int,
        block_size: int,
        max_length: int,
        progress: LayerProgress = lambda done, total: None,
    ) -> None:
        config = self.config = checkpoint.config
        self.vocab_size = config.vocab
        self._ops = ops
        embed = checkpoint.matrix("embed")
        self._embed = ops.embedding(embed, config.embedding_scale)
        tables = {rope: _tables(rope, max_length, ops) for rope in set(config.ropes)}
        self._layers: list[_Layer] = []
        for i, spec in enumerate(attention_specs(config)):
            attention = ops.attention(spec, num_blocks, block_size)
            self._layers.append(_Layer(checkpoint, i, ops, attention, tables[config.ropes[i]]))
            progress(i + 1, config.num_layers)
        self._final_norm = checkpoint.norm("final_norm").to(ops.device)
        fuse = getattr(ops, "fuse", None)
        layers = [layer.parts() for layer in self._layers]
        self._fused = None if fuse is None else fuse(layers, self._final_norm, config.norm_eps)
        self._head = ops.linear([embed if config.tied else checkpoint.matrix("lm_head")], [None])

    def forward(self, tokens: np.ndarray, batch: AttentionBatch) -> torch.Tensor:
        """(T,) int32 -> the last hidden states (T, hidden), whose keys and values are then in the pool."""
        residual = self._embed(tokens)
        if self._fused is not None:
            return self._fused(residual, batch)
        update: torch.Tensor | None = None
        for layer in self._layers:
            update, residual = layer(update, residual, batch)
        assert update is not None  # a model has layers
        return self._ops.add_rms_norm(update, residual, self._final_norm, self.config.norm_eps)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of hidden states (N, hidden) -> (N, vocab) float32."""
        logits = self._head(hidden).float()
        if self.config.logit_softcap:
            logits = torch.tanh(logits / self.config.logit_softcap) * self.config.logit_softcap
        return logits


def _tables(rope: Rope, length: int, ops: Ops) -> Tables:
    cos, sin = rope_tables(rope, length)
    return cos.to(ops.device), sin.to(ops.device)


class _Layer:
    """Hidden states travel as a residual stream and the last block's update, added where the next norm reads both."""

    def __init__(self, checkpoint: Checkpoint, i: int, ops: Ops, attention: Attention, tables: Tables) -> None:
        config = self._config = checkpoint.config
        self._ops = ops
        self._attention = attention
        self._tables = tables

        def norm(name: str, present: bool = True) -> torch.Tensor | None:
            return checkpoint.norm(name, i).to(ops.device) if present else None

        def linear(*names: str, bias: bool) -> Linear:
            weights = [checkpoint.matrix(name, i) for name in names]
            return ops.linear(weights, [checkpoint.bias(name, i) if bias else None for name in names])

        self._attn_norm = checkpoint.norm("attn_norm", i).to(ops.device)
        self._ffn_norm = checkpoint.norm("ffn_norm", i).to(ops.device)
        self._post_attn_norm = norm("post_attn_norm", config.sandwich_norms)
        self._post_ffn_norm = norm("post_ffn_norm", config.sandwich_norms)
        self._q_norm = norm("q_norm", config.qk_norm)
        self._k_norm = norm("k_norm", config.qk_norm)
        self._qkv = linear("q", "k", "v", bias=config.qkv_bias)
        self._o = linear("o", bias=config.o_bias)
        self._gate_up = linear("gate", "up", bias=config.mlp_bias)
        self._down = linear("down", bias=config.mlp_bias)

    def __call__(
        self, update: torch.Tensor | None, residual: torch.Tensor, batch: AttentionBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ops, eps = self._ops, self._config.norm_eps
        if update is None:
            x = ops.rms_norm(residual, self._attn_norm, eps)
        else:
            x, residual = ops.add_rms_norm(update, residual, self._attn_norm, eps)
        update = self._normed(self._attend(x, batch), self._post_attn_norm)
        x, residual = ops.add_rms_norm(update, residual, self._ffn_norm, eps)
        x = ops.gated(self._gate_up(x), self._config.activation)
        return self._normed(self._down(x), self._post_ffn_norm), residual

    def parts(self) -> DecoderLayer:
        """This layer for ops that run a whole decoder themselves."""
        cos, sin = self._tables
        return DecoderLayer(
            attn_norm=self._attn_norm,
            qkv=self._qkv,
            cos=cos,
            sin=sin,
            attention=self._attention,
            o=self._o,
            ffn_norm=self._ffn_norm,
            gate_up=self._gate_up,
            activation=self._config.activation,
            down=self._down,
            q_norm=self._q_norm,
            k_norm=self._k_norm,
            post_attn_norm=self._post_attn_norm,
            post_ffn_norm=self._post_ffn_norm,
        )

    def _attend(self, x: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        config = self._config
        qkv = self._qkv(x)
        q, k, v = (
            part.unflatten(1, (-1, config.head_dim))
            for part in qkv.split([config.q_size, config.kv_size, config.kv_size], dim=1)
        )
        q, k = self._normed(q, self._q_norm), self._normed(k, self._k_norm)
        self._ops.rotary(q, k, *self._tables, batch.positions)
        return self._o(self._attention(q, k, v, batch))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return x if weight is None else self._ops.rms_norm(x, weight, self._config.norm_eps)
