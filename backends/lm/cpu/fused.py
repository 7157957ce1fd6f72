"""A whole decoder as one tape: the same tasks as the single operations, without Python or copies in between."""

from typing import Any

import numpy as np
import torch

from backends.lm.attention import paged_args as paged
from backends.lm.cpu import gates, linear, norms, rotary
from backends.lm.cpu.bound_tape import Bound, TapeBuilder
from backends.lm.cpu.memory import aligned
from backends.lm.cpu.panels import panel_bytes
from backends.lm.cpu.team import Team
from backends.lm.ops import AttentionBatch, AttentionSpec, DecoderLayer

_TOKENS = Bound("tokens")
_PANELS = Bound("panels")


class TapeDecoder:
    """See `ops.LayerStack`. Buffers grow with the largest step seen and belong to this object.

    Buffers are float32 rows: `update` what the last block adds to the residual stream, `qkv`, `attended`,
    `gate_up`, `result`; and `panels`, the input of the product that comes next.
    """

    def __init__(self, layers: list[DecoderLayer], final_norm: torch.Tensor, eps: float, team: Team) -> None:
        self._parts = (layers, final_norm)  # keeps weights and pools alive
        self._team = team
        self._eps = int(np.float64(eps).view(np.int64))
        self._spec: AttentionSpec = layers[0].attention.spec  # type: ignore[attr-defined]
        self._workspace: Any = layers[0].attention.workspace  # type: ignore[attr-defined]
        self._hidden = layers[0].qkv.in_features
        self._products: list[Any] = [p for layer in layers for p in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        self._widths = {
            "update": max(part.padded_features for layer in layers for part in (layer.o, layer.down)),  # type: ignore[attr-defined]
            "qkv": max(layer.qkv.padded_features for layer in layers),  # type: ignore[attr-defined]
            "attended": self._spec.num_heads * self._spec.head_dim,
            "gate_up": max(layer.gate_up.padded_features for layer in layers),  # type: ignore[attr-defined]
            "result": self._hidden,
        }
        self._builder = TapeBuilder()
        self._starts: list[int] = []  # where each layer begins on the tape
        for layer in layers:
            self._starts.append(len(self._builder))
            self._add_attention_block(layer)
            self._add_feed_forward_block(layer)
        self._add_norm(norms.norm_task(), final_norm, Bound("result"))
        self._tape = self._builder.finish()
        self._buffers: dict[str, np.ndarray] = {}
        self._capacity = 0
        self._batch: AttentionBatch | None = None

    def __call__(
        self, hidden: torch.Tensor, batch: AttentionBatch, first: int = 0, end: int | None = None
    ) -> torch.Tensor:
        tokens = hidden.shape[0]
        if tokens > self._capacity:
            self._grow(tokens)
        if batch is not self._batch:
            self._take(batch)
        self._tape.bind("tokens", tokens)
        self._tape.bind("residual", hidden.data_ptr())
        self._tape.bind("residual_stride", 4 * hidden.stride(0))
        self._buffers["update"][: tokens * self._widths["update"]] = 0  # what the first norm adds
        if end is None or end == len(self._starts):
            self._team.run(self._tape.tape, self._starts[first])
            return self._result[:tokens]
        self._team.run(self._tape.tape, self._starts[first], self._starts[end])
        return hidden.add_(self._update[:tokens, : self._hidden])

    def _add_attention_block(self, layer: DecoderLayer) -> None:
        attention: Any = layer.attention
        spec = attention.spec
        q_bytes, kv_bytes = 4 * spec.num_heads * spec.head_dim, 4 * spec.num_kv_heads * spec.head_dim
        q, k, v = Bound("qkv"), Bound("qkv", q_bytes), Bound("qkv", q_bytes + kv_bytes)
        stride = 4 * self._widths["qkv"]
        self._add_norm(self._norm_for(layer.qkv), layer.attn_norm, _PANELS)
        self._add_product(layer.qkv, "qkv")
        self._add_norm_in_place(layer.q_norm, q, stride, spec.num_heads, spec.head_dim)
        self._add_norm_in_place(layer.k_norm, k, stride, spec.num_kv_heads, spec.head_dim)
        self._builder.add(
            rotary.rotary_task(),
            {
                rotary.Q: q,
                rotary.Q_STRIDE: stride,
                rotary.HEADS: spec.num_heads,
                rotary.K: k,
                rotary.K_STRIDE: stride,
                rotary.KV_HEADS: spec.num_kv_heads,
                rotary.DIM: spec.head_dim,
                rotary.COS: layer.cos.data_ptr(),
                rotary.SIN: layer.sin.data_ptr(),
                rotary.POSITIONS: Bound("positions"),
                rotary.TOKENS: _TOKENS,
            },
            rotary.NUM_ARGS,
        )
        arguments = {
            paged.Q: q,
            paged.K: k,
            paged.V: v,
            paged.Q_STRIDE: stride,
            paged.K_STRIDE: stride,
            paged.V_STRIDE: stride,
            paged.OUT: Bound("attended"),
            **{index: Bound(f"batch {index}") for index in paged.BATCH_ARGS},
        }
        for task, fixed in attention.tape.entries:
            self._builder.add(task, arguments, paged.NUM_ARGS, like=fixed)
        self._add_convert(layer.o, "attended")
        self._add_product(layer.o, "update")
        self._add_norm_in_place(layer.post_attn_norm, Bound("update"), 4 * self._widths["update"], 1, self._hidden)

    def _add_feed_forward_block(self, layer: DecoderLayer) -> None:
        self._add_norm(self._norm_for(layer.gate_up), layer.ffn_norm, _PANELS)
        self._add_product(layer.gate_up, "gate_up")
        down: Any = layer.down
        self._builder.add(
            gates.gate_task(down.form.name, layer.activation),
            {
                gates.GATE_UP: Bound("gate_up"),
                gates.GATE_UP_STRIDE: 4 * self._widths["gate_up"],
                gates.FEATURES: down.in_features,
                gates.TOKENS: _TOKENS,
                gates.OUT: _PANELS,
            },
            gates.NUM_ARGS,
        )
        self._add_product(down, "update")
        self._add_norm_in_place(layer.post_ffn_norm, Bound("update"), 4 * self._widths["update"], 1, self._hidden)

    def _norm_for(self, product: Any) -> Any:
        return norms.norm_to_panels_task(product.form.name)

    def _add_norm(self, task: Any, weight: torch.Tensor, out: Bound) -> None:
        """out = norm(residual += update)."""
        self._builder.add(
            task,
            {
                norms.X: Bound("update"),
                norms.X_STRIDE: 4 * self._widths["update"],
                norms.RESIDUAL: Bound("residual"),
                norms.RESIDUAL_STRIDE: Bound("residual_stride"),
                norms.WEIGHT: weight.data_ptr(),
                norms.EPS: self._eps,
                norms.OUT: out,
                norms.OUT_STRIDE: 4 * self._hidden,
                norms.TOKENS: _TOKENS,
                norms.HEADS: 1,
                norms.DIM: self._hidden,
            },
            norms.NUM_ARGS,
        )

    def _add_norm_in_place(self, weight: torch.Tensor | None, x: Bound, stride: int, heads: int, dim: int) -> None:
        if weight is None:
            return
        self._builder.add(
            norms.norm_task(),
            {
                norms.X: x,
                norms.X_STRIDE: stride,
                norms.WEIGHT: weight.data_ptr(),
                norms.EPS: self._eps,
                norms.OUT: x,
                norms.OUT_STRIDE: stride,
                norms.TOKENS: _TOKENS,
                norms.HEADS: heads,
                norms.DIM: dim,
            },
            norms.NUM_ARGS,
        )

    def _add_convert(self, product: Any, source: str) -> None:
        """panels = source."""
        self._builder.add(
            linear.convert_task(product.form.name),
            {
                linear.X: Bound(source),
                linear.X_STRIDE: 4 * self._widths[source],
                linear.ROWS: _TOKENS,
                linear.PANELS: _PANELS,
            },
            linear.NUM_ARGS,
            like=product.args,
        )

    def _add_product(self, product: Any, out: str) -> None:
        """out = panels . weights."""
        self._builder.add(
            linear.multiply_task(product.form.name),
            {
                linear.ROWS: _TOKENS,
                linear.PANELS: _PANELS,
                linear.Y: Bound(out),
                linear.Y_STRIDE: 4 * self._widths[out],
            },
            linear.NUM_ARGS,
            like=product.args,
        )

    def _grow(self, tokens: int) -> None:
        self._capacity = max(tokens, 2 * self._capacity)
        largest = max(panel_bytes(product.form, self._capacity, product.in_features) for product in self._products)
        self._buffers = {name: aligned(self._capacity * width, np.float32) for name, width in self._widths.items()}
        self._buffers["panels"] = aligned(largest)
        for name, buffer in self._buffers.items():
            self._tape.bind(name, buffer.ctypes.data)
        self._result = torch.from_numpy(self._buffers["result"]).view(self._capacity, self._hidden)
        self._update = torch.from_numpy(self._buffers["update"]).view(self._capacity, self._widths["update"])

    def _take(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._batch_args = self._workspace.batch_args(batch)
        for index, value in self._batch_args.values.items():
            self._tape.bind(f"batch {index}", value)
        self._tape.bind("positions", batch.positions.ctypes.data)
