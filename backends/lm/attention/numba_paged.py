"""Paged attention on x86: the pool of a layer and the tasks over it, compiled on the machine they run on."""

import numpy as np
import torch

from backends.api.errors import Code, ServingError
from backends.lm.attention.paged_args import (
    BLOCK_GROUPS,
    BLOCK_SIZE,
    CAP,
    HEAD_DIM,
    HEADS,
    K_STRIDE,
    KEYS,
    KV_HEADS,
    NUM_ARGS,
    OUT,
    OUT_STRIDE,
    Q_STRIDE,
    SCALE,
    SPAN,
    V_STRIDE,
    VALUES,
    WINDOW,
    K,
    Q,
    V,
)
from backends.lm.attention.paged_attend import attend_task, join_task
from backends.lm.attention.paged_pool import MAX_HEAD_DIM, group_bytes, write_task
from backends.lm.attention.paged_work import Workspace, span_of
from backends.lm.cpu.memory import aligned
from backends.lm.cpu.team import Tape, Team
from backends.lm.cpu.tiles import TILE
from backends.lm.ops import AttentionBatch, AttentionSpec


class NumbaPagedAttention:
    """One layer's pool and its attention. `kv_form` is "bf16" or "f32". The result lives until the next call.

    Raises ServingError(UNSUPPORTED) for a head size that is odd or above 256, and for a block size
    that is neither below 16 nor a multiple of it.
    """

    def __init__(self, spec: AttentionSpec, num_blocks: int, block_size: int, kv_form: str, team: Team) -> None:
        if spec.head_dim % 2 or spec.head_dim > MAX_HEAD_DIM:
            raise ServingError(
                Code.UNSUPPORTED,
                f"CPU attention takes heads of 2, 4, ... {MAX_HEAD_DIM} features, got {spec.head_dim}",
            )
        if block_size > TILE and block_size % TILE:
            raise ServingError(
                Code.UNSUPPORTED, f"CPU attention takes blocks of up to 16 or 32, 48, ... tokens, got {block_size}"
            )
        self.spec = spec
        self._team = team
        groups = num_blocks * spec.num_kv_heads * -(-block_size // TILE)
        keys_a_unit = 1 if kv_form == "f32" else 2
        key_bytes, value_bytes = group_bytes.py_func(spec.head_dim, keys_a_unit)
        self._keys, self._values = aligned(groups * key_bytes), aligned(groups * value_bytes)
        self.args = np.zeros(NUM_ARGS, dtype=np.int64)
        self._set(
            {
                KEYS: self._keys.ctypes.data,
                VALUES: self._values.ctypes.data,
                HEADS: spec.num_heads,
                KV_HEADS: spec.num_kv_heads,
                HEAD_DIM: spec.head_dim,
                BLOCK_SIZE: block_size,
                BLOCK_GROUPS: -(-block_size // TILE),
                SPAN: span_of(block_size),
                WINDOW: spec.window,
                OUT_STRIDE: 4 * spec.num_heads * spec.head_dim,
            }
        )
        self.args.view(np.float64)[[SCALE, CAP]] = spec.scale, spec.softcap
        tasks = (write_task(kv_form), attend_task(kv_form), join_task())
        self.tape = Tape([(task, self.args) for task in tasks])
        self.workspace = Workspace(spec, span_of(block_size))
        self._out = torch.empty(0, spec.num_heads * spec.head_dim)
        self._batch: AttentionBatch | None = None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
        tokens = q.shape[0]
        if len(self._out) < tokens:
            self._out = torch.empty(max(tokens, 2 * len(self._out)), self._out.shape[1])
            self.args[OUT] = self._out.data_ptr()
        if batch is not self._batch:
            self._batch = batch
            self._batch_args = self.workspace.batch_args(batch)
            self._set(self._batch_args.values)
        rows = [_rows(x) for x in (q, k, v)]
        args = self.args
        args[Q], args[K], args[V] = (x.data_ptr() for x in rows)
        args[Q_STRIDE], args[K_STRIDE], args[V_STRIDE] = (4 * x.stride(0) for x in rows)
        self._team.run(self.tape)
        return self._out[:tokens].to(q.dtype)

    def _set(self, arguments: dict[int, int]) -> None:
        for index, value in arguments.items():
            self.args[index] = value


def _rows(x: torch.Tensor) -> torch.Tensor:
    """(T, heads, D) as float32 whose tokens are each contiguous."""
    x = x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
