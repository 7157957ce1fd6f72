"""`Ops` in plain torch: right on every device and in every dtype, fast on none in particular."""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from backends.lm.attention.reference import ReferenceAttention
from backends.lm.attention.torch_gather import GatherAttention
from backends.lm.attention.varlen import StepArrays, VarlenAttention
from backends.lm.ops import Attention, AttentionSpec
from backends.lm.weights import Weight

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


_TILE = 16  # rows of every product when results must not depend on how many there are


class TorchOps:
    """`attention` is gather, varlen or reference. `deterministic` makes every product one of `_TILE` rows, so that a
    row's result is the same in any batch."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, *, attention: str = "gather", deterministic: bool = False
    ) -> None:
        self.dtype = dtype
        self.kv_dtype = torch.float32 if attention == "reference" else dtype
        self.device = device
        self._attention = attention
        self._deterministic = deterministic
        self._arrays = StepArrays(device)
        self._make_linear = _TiledLinear if deterministic else TorchLinear
        self._table: tuple[Weight, torch.Tensor] | None = None  # the embedding's values, shared with a tied head

    def linear(self, weights: list[Weight], biases: list[torch.Tensor | None]) -> "TorchLinear":
        if self._table is not None and weights[0] is self._table[0]:
            return self._make_linear(self._table[1], None)
        matrix = torch.cat([self._dense(weight) for weight in weights]) if len(weights) > 1 else self._dense(weights[0])
        if all(bias is None for bias in biases):
            return self._make_linear(matrix, None)
        parts = [
            torch.zeros(weight.shape[0]) if bias is None else bias for weight, bias in zip(weights, biases, strict=True)
        ]
        return self._make_linear(matrix, torch.cat(parts).to(self.device, self.dtype))

    def embedding(self, weight: Weight, scale: float = 1.0) -> "TorchEmbedding":
        self._table = (weight, self._dense(weight))
        return TorchEmbedding(self._table[1], scale)

    def attention(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> Attention:
        if self._attention == "reference":
            return ReferenceAttention(spec, num_blocks, block_size)
        if self._attention == "gather":
            return GatherAttention(spec, num_blocks, block_size, self.dtype, self.device)
        return VarlenAttention(
            spec,
            num_blocks,
            block_size,
            self.dtype,
            self.device,
            arrays=self._arrays,
            deterministic=self._deterministic,
        )

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def rotary(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: np.ndarray
    ) -> None:
        at = torch.from_numpy(positions).long().to(cos.device)
        cos, sin = cos[at, None].to(q.dtype), sin[at, None].to(q.dtype)  # (T, 1, D / 2)
        for x in (q, k):
            first, second = x.chunk(2, dim=-1)
            rotated = first * cos - second * sin
            second.mul_(cos).add_(first * sin)
            first.copy_(rotated)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return _ACTIVATIONS[activation](gate) * up

    def close(self) -> None:
        self._table = None

    def _dense(self, weight: Weight) -> torch.Tensor:
        return weight.dequantize(self.dtype).to(self.device)


class TorchLinear:
    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features, self.in_features = matrix.shape
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._matrix, self._bias)


class _TiledLinear(TorchLinear):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        padded = functional.pad(x, (0, 0, 0, -rows % _TILE))
        return torch.cat([super(_TiledLinear, self).__call__(tile) for tile in padded.split(_TILE)])[:rows]


class TorchEmbedding:
    def __init__(self, table: torch.Tensor, scale: float) -> None:
        self._table = table
        self._scale = torch.tensor(scale, dtype=table.dtype)

    def __call__(self, tokens: np.ndarray) -> torch.Tensor:
        rows = self._table[torch.from_numpy(tokens).long().to(self._table.device)]
        return rows * self._scale.to(rows.device)
