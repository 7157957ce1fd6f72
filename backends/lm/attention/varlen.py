"""Paged attention on CUDA by torch's own kernel, `torch.nn.attention.varlen.varlen_attn` with a block table.

Takes decode and prefill in one call, in bfloat16 or float16. Which page sizes and devices it takes differs between
versions of torch, so each kind is tried on a small case before it is used. Written from the signature and
documentation of torch 2.13 and run here only up to the refusal on a CPU.
"""

from dataclasses import dataclass

import numpy as np
import torch

from backends.api.errors import Code, ServingError
from backends.lm.attention.reference import ReferenceAttention
from backends.lm.ops import AttentionBatch, AttentionSpec


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A step's arrays on the device, with the host batch they were made of."""

    batch: AttentionBatch
    query_starts: torch.Tensor  # (S + 1,) int32
    context_lens: torch.Tensor  # (S,) int32
    block_table: torch.Tensor  # (S, B) int32
    slots: torch.Tensor  # (T,) int64


class StepArrays:
    """Keeps the current step's arrays on the device, so that layers which share it copy them once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._current: DeviceBatch | None = None

    def of(self, batch: AttentionBatch) -> DeviceBatch:
        if self._current is None or self._current.batch is not batch:
            arrays = (batch.query_starts, batch.context_lens, batch.block_table, batch.slots)
            self._current = DeviceBatch(batch, *(torch.from_numpy(a).to(self._device) for a in arrays))
        return self._current


class VarlenAttention:
    """One layer's pool, (blocks, block_size, kv heads, D) each for keys and values, and attention over it.

    `deterministic` keeps a sequence's result independent of its neighbours (no split over keys), which costs speed
    with few queries. Raises ServingError(UNSUPPORTED) for a soft cap, for another dtype or device, and where torch's
    kernel refuses or fails a trial.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        arrays: StepArrays | None = None,
        deterministic: bool = False,
    ) -> None:
        if spec.softcap:
            raise ServingError(Code.UNSUPPORTED, "torch's varlen attention has no soft cap on scores")
        if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
            raise ServingError(
                Code.UNSUPPORTED,
                f"torch's varlen attention runs in bfloat16 or float16 on CUDA, not in {dtype} on {device.type}",
            )
        self._spec = spec
        self._arrays = arrays or StepArrays(device)
        self._num_splits = 1 if deterministic else None
        self._window = (spec.window - 1 if spec.window else -1, 0)
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        step = self._arrays.of(batch)
        self._keys.flatten(0, 1).index_copy_(0, step.slots, k)
        self._values.flatten(0, 1).index_copy_(0, step.slots, v)
        out = varlen_attn(
            q.contiguous(),
            self._keys,
            self._values,
            step.query_starts,
            None,
            batch.max_query,
            batch.max_context,
            scale=self._spec.scale,
            window_size=self._window,
            enable_gqa=self._spec.num_heads != self._spec.num_kv_heads,
            seqused_k=step.context_lens,
            block_table=step.block_table,
            num_splits=self._num_splits,
        )
        return out.flatten(1)


def check_varlen(spec: AttentionSpec, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
    """Try a layer like `spec` with blocks of `block_size` on `device` against the dense reference.

    Raises ServingError(UNSUPPORTED), with the reason, where the kernel is not offered, refuses or is wrong; callers
    then take `torch_gather`.
    """
    attention = VarlenAttention(spec, 4, block_size, dtype, device)
    reference = ReferenceAttention(spec, 4, block_size)
    length = block_size + 3
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(length, spec.num_heads, spec.head_dim, generator=generator)
    k, v = (torch.randn(length, spec.num_kv_heads, spec.head_dim, generator=generator) for _ in range(2))
    q, k, v = (x.to(dtype) for x in (q, k, v))
    for start, end in ((0, length - 1), (length - 1, length)):
        batch = _trial_batch(start, end, block_size)
        wanted = reference(q[start:end], k[start:end], v[start:end], batch)
        try:
            new_q, new_k, new_v = (x[start:end].to(device) for x in (q, k, v))
            got = attention(new_q, new_k, new_v, batch).cpu()
        except (ImportError, RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            reason = str(error).split("\n")[0]
            raise ServingError(Code.UNSUPPORTED, f"torch's varlen attention does not run here: {reason}") from error
        if not torch.allclose(got.float(), wanted.float(), rtol=0, atol=0.05):
            raise ServingError(Code.UNSUPPORTED, "torch's varlen attention gives wrong results here")


def _trial_batch(start: int, end: int, block_size: int) -> AttentionBatch:
    """Tokens [start, end) of one sequence that lies in blocks 2 and 1."""
    positions = np.arange(start, end, dtype=np.int32)
    table = np.array([[2, 1]], dtype=np.int32)
    return AttentionBatch(
        query_starts=np.array([0, end - start], dtype=np.int32),
        context_lens=np.array([end], dtype=np.int32),
        block_table=table,
        positions=positions,
        slots=table[0, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        max_query=end - start,
        max_context=end,
    )
