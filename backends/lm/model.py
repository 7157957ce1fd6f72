"""The decoder of the Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 and Gemma 3 families: its parts, made by `Ops`.

What a layer computes is said at `ops.DecoderLayer`.
"""

from collections.abc import Callable

import numpy as np
import torch

from backends.lm.checkpoint import Checkpoint
from backends.lm.config import LmConfig, Rope
from backends.lm.ops import Attention, AttentionBatch, AttentionSpec, DecoderLayer, LayerStack, Linear, Ops
from backends.lm.plain_decoder import PlainDecoder
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
        self.num_layers = config.num_layers
        self._ops = ops
        embed = checkpoint.matrix("embed")
        self._embed = ops.embedding(embed, config.embedding_scale)
        tables = {rope: _tables(rope, max_length, ops) for rope in set(config.ropes)}
        layers = []
        for i, spec in enumerate(attention_specs(config)):
            attention = ops.attention(spec, num_blocks, block_size)
            layers.append(_layer(checkpoint, i, ops, attention, tables[config.ropes[i]]))
            progress(i + 1, config.num_layers)
        final_norm = checkpoint.norm("final_norm").to(ops.device)
        self._layers = _joined(ops, layers, final_norm, config)
        self._head = ops.linear([embed if config.tied else checkpoint.matrix("lm_head")], [None])

    def forward(self, tokens: np.ndarray, batch: AttentionBatch) -> torch.Tensor:
        """(T,) int32 -> the last hidden states (T, hidden), whose keys and values are then in the pool.

        Valid until the next call.
        """
        return self._layers(self._embed(tokens), batch)

    def embed(self, tokens: np.ndarray) -> torch.Tensor:
        """(T,) int32 -> (T, hidden), which is the caller's."""
        return self._embed(tokens)

    def advance(self, hidden: torch.Tensor, batch: AttentionBatch, first: int, end: int) -> torch.Tensor:
        """Layers `first` to before `end` on embedded tokens, or on what the layers before them returned (`LayerStack`)."""
        return self._layers(hidden, batch, first, end)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of hidden states (N, hidden) -> (N, vocab) float32, valid until the next call."""
        logits = self._head(hidden).float()
        if self.config.logit_softcap:
            logits = torch.tanh(logits / self.config.logit_softcap) * self.config.logit_softcap
        return logits

    def close(self) -> None:
        self._ops.close()


def _joined(ops: Ops, layers: list[DecoderLayer], final_norm: torch.Tensor, config: LmConfig) -> LayerStack:
    """As one call where the ops offer that, else operation by operation."""
    fuse = getattr(ops, "fuse", None)
    fused: LayerStack | None = fuse(layers, final_norm, config.norm_eps) if fuse else None
    return fused or PlainDecoder(ops, layers, final_norm, config)


def _tables(rope: Rope, length: int, ops: Ops) -> Tables:
    cos, sin = rope_tables(rope, length)
    return cos.to(ops.device), sin.to(ops.device)


def _layer(checkpoint: Checkpoint, i: int, ops: Ops, attention: Attention, tables: Tables) -> DecoderLayer:
    config = checkpoint.config

    def norm(name: str, present: bool) -> torch.Tensor | None:
        return checkpoint.norm(name, i).to(ops.device) if present else None

    def linear(*names: str, bias: bool) -> Linear:
        weights = [checkpoint.matrix(name, i) for name in names]
        return ops.linear(weights, [checkpoint.bias(name, i) if bias else None for name in names])

    return DecoderLayer(
        attn_norm=checkpoint.norm("attn_norm", i).to(ops.device),
        qkv=linear("q", "k", "v", bias=config.qkv_bias),
        cos=tables[0],
        sin=tables[1],
        attention=attention,
        o=linear("o", bias=config.o_bias),
        ffn_norm=checkpoint.norm("ffn_norm", i).to(ops.device),
        gate_up=linear("gate", "up", bias=config.mlp_bias),
        activation=config.activation,
        down=linear("down", bias=config.mlp_bias),
        q_norm=norm("q_norm", config.qk_norm),
        k_norm=norm("k_norm", config.qk_norm),
        post_attn_norm=norm("post_attn_norm", config.sandwich_norms),
        post_ffn_norm=norm("post_ffn_norm", config.sandwich_norms),
    )
