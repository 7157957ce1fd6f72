"""The operations a decoder is written in, and the choice of who carries them out.

`model.py` says what a model computes, in these words only. `TorchOps` (torch_ops.py) is right everywhere;
`CpuOps` (cpu/) has kernels for x86 servers. Chosen once, at load. Activations are (tokens, features).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from backends.lm.weights import Weight


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention. `window` 0: all tokens before; w: the last w, itself included. `softcap` 0: none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0


@dataclass(slots=True)
class AttentionBatch:
    """Where a step's tokens stand: the arrays of `StepBatch`, with what every layer would derive from them.

    `slots[t]` is token t's place in the pool: block * block_size + offset.
    """

    query_starts: np.ndarray  # (S + 1,) int32
    context_lens: np.ndarray  # (S,) int32
    block_table: np.ndarray  # (S, B) int32
    positions: np.ndarray  # (T,) int32
    slots: np.ndarray  # (T,) int64
    max_query: int
    max_context: int


class Linear(Protocol):
    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(T, in_features) -> (T, out_features). The result may live until the next call of the same object."""
        ...


class Attention(Protocol):
    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        """Write k and v (T, kv heads, D) into the layer's pool, then attend causally with q (T, heads, D).

        Returns (T, heads * D).
        """
        ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The parts of one decoder layer, as `Ops` made them, for ops that run whole decoders.

    `x += [post_attn_norm] o(attention(rope([q_norm] q), rope([k_norm] k), v))` of `attn_norm(x)`, then
    `x += [post_ffn_norm] down(activation(gate) * up)` of `ffn_norm(x)`; norms that a model lacks are None.
    """

    attn_norm: torch.Tensor
    qkv: Linear
    cos: torch.Tensor
    sin: torch.Tensor
    attention: Attention
    o: Linear
    ffn_norm: torch.Tensor
    gate_up: Linear
    activation: str
    down: Linear
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    post_attn_norm: torch.Tensor | None = None
    post_ffn_norm: torch.Tensor | None = None


class LayerStack(Protocol):
    """A decoder's layers and its final norm."""

    def __call__(
        self, hidden: torch.Tensor, batch: AttentionBatch, first: int = 0, end: int | None = None
    ) -> torch.Tensor:
        """Layers `first` to before `end` (all that follow with None) on `hidden` (T, hidden), which is overwritten.

        Layer 0 takes embedded tokens, any other what the layers before it returned: the residual stream (T, hidden),
        in `hidden`'s own memory. With the last layer among them, the last hidden states, valid until the next call.
        """
        ...


class Ops(Protocol):
    """`dtype` is that of activations, `kv_dtype` that of the pool. Weights are given once, at load, and may be repacked."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device

    def linear(self, weights: list[Weight], biases: list[torch.Tensor | None]) -> Linear:
        """One product for several matrices that share their input, their outputs side by side."""
        ...

    def embedding(self, weight: Weight, scale: float = 1.0) -> "Embedding": ...

    def attention(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> Attention: ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / rms(x) * weight over the last dimension, computed in float32."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual); `residual` may be overwritten with the sum."""
        ...

    def rotary(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: np.ndarray
    ) -> None:
        """Rotate q and k (T, heads, D) in place, halves paired (Hugging Face's layout). Tables are (max length, D / 2)."""
        ...

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """(T, 2F) -> (T, F): activation(gate) * up. `activation` is "silu", "gelu" or "gelu_tanh"."""
        ...

    def close(self) -> None:
        """Give threads and memory back. Nothing is called afterwards."""
        ...

    # def fuse(self, layers: list[DecoderLayer], final_norm: torch.Tensor, eps: float) -> LayerStack | None
    # may be offered too: None, or no such method, means that the layers are to be run operation by operation.


class Embedding(Protocol):
    def __call__(self, tokens: np.ndarray) -> torch.Tensor:
        """(T,) int32 -> (T, hidden)."""
        ...
