"""A model's weights under neutral names, whichever file they come from: checked shapes, Hugging Face's row order.

Neutral names: `embed`, `final_norm`, `lm_head`, and for a layer `attn_norm`, `q`, `k`, `v`, `o`, `q_norm`, `k_norm`,
`post_attn_norm`, `ffn_norm`, `gate`, `up`, `down`, `post_ffn_norm`.
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from backends.lm.config import LmConfig
from backends.lm.gguf import GgufFile
from backends.lm.weights import Weight, WeightFile, raw_weight, weight_error

_HF_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_HF_SANDWICH = {
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}
_GGUF = {
    "embed": "token_embd",
    "final_norm": "output_norm",
    "lm_head": "output",
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
}


class GgufWeights:
    """A `WeightFile` over an open GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self.path: Path = file.path
        self._tensors = file.tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def weight(self, name: str) -> Weight:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise weight_error(self.path, name, "to be there", "nothing")
        return raw_weight(self.path, name, tensor.format, tensor.shape, tensor.data)


class Checkpoint:
    """Weights of `config`'s model in `file`. Raises ServingError with file, tensor, expected and got."""

    def __init__(self, config: LmConfig, file: WeightFile) -> None:
        self.config = _untied_by_file(config, file)
        self._file = file
        self._is_gguf = isinstance(file, GgufWeights)
        self._prefix = "" if self._is_gguf else _hf_prefix(file)
        # llama.cpp rotates neighbours in this architecture, and its converter reorders rows accordingly
        self._interleaved = self._is_gguf and config.architecture == "llama"

    def matrix(self, name: str, layer: int | None = None) -> Weight:
        """The matrix (out, in) under a neutral name, in its file's format."""
        return self._read(name, layer, "weight", self._matrix_shape(name))

    def bias(self, name: str, layer: int) -> torch.Tensor:
        """(out,) float32."""
        return self._read(name, layer, "bias", self._matrix_shape(name)[:1]).dequantize(torch.float32)

    def norm(self, name: str, layer: int | None = None) -> torch.Tensor:
        """A norm's weight (size,) float32, offset included."""
        size = self.config.head_dim if name in ("q_norm", "k_norm") else self.config.hidden
        return self._read(name, layer, "weight", (size,)).dequantize(torch.float32) + self.config.norm_offset

    def _read(self, name: str, layer: int | None, kind: str, shape: tuple[int, ...]) -> Weight:
        stored = self._stored_name(name, layer, kind)
        weight = self._file.weight(stored)
        if weight.shape != shape:
            raise weight_error(self._file.path, stored, f"shape {list(shape)}", f"{list(weight.shape)}")
        if self._interleaved and name in ("q", "k"):
            return _halves_paired(weight, self.config.head_dim)
        return weight

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        c = self.config
        return {
            "embed": (c.vocab, c.hidden),
            "lm_head": (c.vocab, c.hidden),
            "q": (c.q_size, c.hidden),
            "k": (c.kv_size, c.hidden),
            "v": (c.kv_size, c.hidden),
            "o": (c.hidden, c.q_size),
            "gate": (c.ffn, c.hidden),
            "up": (c.ffn, c.hidden),
            "down": (c.hidden, c.ffn),
        }[name]

    def _stored_name(self, name: str, layer: int | None, kind: str) -> str:
        if self._is_gguf:
            return f"{'' if layer is None else f'blk.{layer}.'}{_GGUF[name]}.{kind}"
        if layer is None:
            outer = {"embed": f"{self._prefix}embed_tokens", "final_norm": f"{self._prefix}norm", "lm_head": "lm_head"}
            return f"{self._lm_head_prefix() if name == 'lm_head' else ''}{outer[name]}.{kind}"
        names = _HF_LAYER | _HF_SANDWICH if self.config.sandwich_norms else _HF_LAYER
        return f"{self._prefix}layers.{layer}.{names[name]}.{kind}"

    def _lm_head_prefix(self) -> str:
        stored = next((name for name in self._file.names() if name.endswith("lm_head.weight")), "")
        return stored.removesuffix("lm_head.weight")


def _untied_by_file(config: LmConfig, file: WeightFile) -> LmConfig:
    """Tied also where the config does not say so, but there is no head of its own."""
    has_head = any(name == "output.weight" or name.endswith("lm_head.weight") for name in file.names())
    return config if has_head or config.tied else replace(config, tied=True)


def _hf_prefix(file: WeightFile) -> str:
    """What stands before the decoder's names: "model.", or more in a multimodal checkpoint."""
    suffix = "embed_tokens.weight"
    found = [name for name in file.names() if name.endswith(suffix)]
    return min(found, key=len).removesuffix(suffix) if found else "model."


def _halves_paired(weight: Weight, head_dim: int) -> Weight:
    """Rows of each head from interleaved pairs (0, 1), (2, 3)... to Hugging Face's pairs (i, i + head_dim / 2)."""
    if len(weight.shape) == 1:
        order = _pair_order(weight.shape[0], head_dim)
        values = weight.dequantize(torch.float32)[order]
        return Weight.from_tensor(values)
    return weight.take_rows(_pair_order(weight.shape[0], head_dim))


def _pair_order(rows: int, head_dim: int) -> np.ndarray:
    return np.arange(rows).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
