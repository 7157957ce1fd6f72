"""`Ops` on an x86 server: float32 activations in torch tensors, work done by a team of threads on their memory."""

import numpy as np
import torch

from backends.lm.attention.numba_paged import NumbaPagedAttention
from backends.lm.cpu import gates, norms, rotary
from backends.lm.cpu.features import cpu_features
from backends.lm.cpu.fused import TapeDecoder
from backends.lm.cpu.linear import PackedLinear
from backends.lm.cpu.memory import Arena
from backends.lm.cpu.packing import format_for
from backends.lm.cpu.team import Tape, Team
from backends.lm.cpu.tiles import GROUP
from backends.lm.ops import AttentionSpec, DecoderLayer
from backends.lm.weights import Weight


class CpuOps:
    """See `backends.lm.cpu.cpu_ops`. One caller at a time; `close` ends its threads."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, dtype: str, num_threads: int, quantized: bool) -> None:
        self._dtype = dtype
        self.kv_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        self._quantized = quantized
        self._team = Team(num_threads)
        self._arena = Arena()
        self._norm = _Operation(norms.norm_task(), norms.NUM_ARGS)
        self._rotary = _Operation(rotary.rotary_task(), rotary.NUM_ARGS)
        self._gates: dict[str, _Operation] = {}

    def close(self) -> None:
        self._team.close()

    def linear(self, weights: list[Weight], biases: list[torch.Tensor | None]) -> PackedLinear:
        form = format_for(weights, self._dtype, cpu_features().vnni, self._quantized)
        return PackedLinear(form, weights, biases, self._team, self._arena)

    def embedding(self, weight: Weight, scale: float = 1.0) -> "RowEmbedding":
        return RowEmbedding(weight, scale)

    def attention(self, spec: AttentionSpec, num_blocks: int, block_size: int) -> NumbaPagedAttention:
        kv_form = "f32" if self._dtype == "float32" else "bf16"
        return NumbaPagedAttention(spec, num_blocks, block_size, kv_form, self._team)

    def fuse(self, layers: list[DecoderLayer], final_norm: torch.Tensor, eps: float) -> TapeDecoder:
        """The whole decoder as one tape; all parts must come from this object."""
        return TapeDecoder(layers, final_norm, eps, self._team)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self._normed(x, None, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._normed(x, residual, weight, eps), residual

    def rotary(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: np.ndarray
    ) -> None:
        args = self._rotary.args
        args[rotary.Q], args[rotary.Q_STRIDE], args[rotary.HEADS] = q.data_ptr(), 4 * q.stride(0), q.shape[1]
        args[rotary.K], args[rotary.K_STRIDE], args[rotary.KV_HEADS] = k.data_ptr(), 4 * k.stride(0), k.shape[1]
        args[rotary.DIM], args[rotary.TOKENS] = q.shape[2], q.shape[0]
        args[rotary.COS], args[rotary.SIN] = cos.data_ptr(), sin.data_ptr()
        args[rotary.POSITIONS] = positions.ctypes.data
        self._team.run(self._rotary.tape)

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        operation = self._gates.get(activation)
        if operation is None:
            operation = self._gates[activation] = _Operation(gates.gate_task("f32", activation), gates.NUM_ARGS)
        tokens, features = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(tokens, -(-features // GROUP) * GROUP)
        args = operation.args
        args[gates.GATE_UP], args[gates.GATE_UP_STRIDE] = gate_up.data_ptr(), 4 * gate_up.stride(0)
        args[gates.FEATURES], args[gates.TOKENS] = features, tokens
        args[gates.OUT], args[gates.PLAIN] = out.data_ptr(), 1
        self._team.run(operation.tape)
        return out[:, :features]

    def _normed(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Over the last dimension of (T, features) or (T, heads, features)."""
        heads = x.shape[1] if x.dim() == 3 else 1
        out = torch.empty(x.shape)
        args = self._norm.args
        args[norms.X], args[norms.X_STRIDE] = x.data_ptr(), 4 * x.stride(0)
        args[norms.RESIDUAL] = 0 if residual is None else residual.data_ptr()
        args[norms.RESIDUAL_STRIDE] = 0 if residual is None else 4 * residual.stride(0)
        args[norms.WEIGHT], args.view(np.float64)[norms.EPS] = weight.data_ptr(), eps
        args[norms.OUT], args[norms.OUT_STRIDE] = out.data_ptr(), 4 * out.stride(0)
        args[norms.TOKENS], args[norms.HEADS], args[norms.DIM] = x.shape[0], heads, x.shape[-1]
        self._team.run(self._norm.tape)
        return out


class _Operation:
    """One task with its arguments."""

    def __init__(self, task: object, num_args: int) -> None:
        self.args = np.zeros(num_args, dtype=np.int64)
        self.tape = Tape([(task, self.args)])


class RowEmbedding:
    """Takes rows of the table out of their file's format when they are asked for: nothing is kept twice."""

    def __init__(self, weight: Weight, scale: float) -> None:
        self._weight = weight
        self._scale = scale

    def __call__(self, tokens: np.ndarray) -> torch.Tensor:
        """(T,) int32 -> (T, hidden) float32, a tensor of its own."""
        weight = self._weight
        rows = Weight(weight.format, (len(tokens), weight.shape[1]), weight.data[tokens])
        return rows.dequantize(torch.float32) * self._scale
