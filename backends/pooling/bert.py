"""Encoders of the BERT and RoBERTa families in lean code: packed rows, products on weights laid out once.

Names of weights and fields are transformers' (`modeling_bert.py`, `modeling_roberta.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from backends.lm.config_hf import read_json
from backends.lm.fields import Fields
from backends.lm.safetensors import SafetensorsFile
from backends.lm.weights import WeightFile, weight_error
from backends.pooling.linear import Linear, make_linear
from backends.pooling.packing import Packed, PaddedGroup, padded_groups

_FAMILIES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}
_ACTIVATIONS = ("gelu", "relu")


@dataclass(frozen=True, slots=True)
class BertConfig:
    """`first_position` is the number of the first position; RoBERTa counts from behind its padding token."""

    family: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    types: int
    positions: int
    first_position: int
    norm_eps: float
    activation: str


def read_bert_config(folder: Path) -> BertConfig | None:
    """None for a folder with a model of another kind. Raises ServingError for fields that make no sense."""
    fields = Fields(read_json(folder / "config.json"), str(folder / "config.json"))
    family = fields.text("model_type", "")
    activation = fields.text("hidden_act", "gelu")
    if (
        family not in _FAMILIES
        or activation not in _ACTIVATIONS
        or fields.text("position_embedding_type", "absolute") != "absolute"
        or fields.flag("is_decoder", default=False)
    ):
        return None
    config = BertConfig(
        family=family,
        hidden=fields.integer("hidden_size"),
        layers=fields.integer("num_hidden_layers"),
        heads=fields.integer("num_attention_heads"),
        ffn=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        types=fields.integer("type_vocab_size", 2),
        positions=fields.integer("max_position_embeddings", 512),
        first_position=0 if family == "bert" else fields.integer("pad_token_id", 1, minimum=0) + 1,
        norm_eps=fields.positive("layer_norm_eps", 1e-12),
        activation=activation,
    )
    if config.hidden % config.heads:
        raise fields.error("num_attention_heads", f"a divisor of {config.hidden}")
    return config


class Weights:
    """The tensors of one model by their names without the family's prefix, in `dtype` on `device`."""

    def __init__(self, file: WeightFile, prefix: str, dtype: torch.dtype, device: torch.device) -> None:
        self._file = file
        self._prefix = prefix if any(name.startswith(prefix) for name in file.names()) else ""
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, *shape: int, of_body: bool = True) -> torch.Tensor:
        """Raises ServingError for one that is missing or of another shape. `of_body` False: a head's, without prefix."""
        full = (self._prefix if of_body else "") + name
        weight = self._file.weight(full)
        if weight.shape != shape:
            raise weight_error(self._file.path, full, f"shape {shape}", f"{weight.shape}")
        return weight.dequantize(self._dtype).to(self._device)

    def norm(self, name: str, size: int) -> "Norm":
        # the names of the first BERT checkpoints, which came from TensorFlow
        old = self._prefix + name + ".gamma" in self._file.names()
        weight, bias = (".gamma", ".beta") if old else (".weight", ".bias")
        return Norm(self.tensor(name + weight, size), self.tensor(name + bias, size))

    def linear(
        self, names: list[str], inputs: int, outputs: int, *, activation: str = "", of_body: bool = True
    ) -> Linear:
        """One product for all `names`, each of `outputs` rows."""
        weights = [self.tensor(f"{name}.weight", outputs, inputs, of_body=of_body) for name in names]
        biases = [self.tensor(f"{name}.bias", outputs, of_body=of_body) for name in names]
        return make_linear(torch.cat(weights), torch.cat(biases), activation)


@dataclass(frozen=True, slots=True)
class Norm:
    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, eps)


class BertEncoder:
    """`hidden` of a packed batch; no padding is computed but in attention, among rows of similar length."""

    def __init__(self, config: BertConfig, weights: Weights) -> None:
        self._config = config
        hidden = config.hidden
        self._words = weights.tensor("embeddings.word_embeddings.weight", config.vocab, hidden)
        self._places = weights.tensor("embeddings.position_embeddings.weight", config.positions, hidden)
        self._types = weights.tensor("embeddings.token_type_embeddings.weight", config.types, hidden)
        self._norm = weights.norm("embeddings.LayerNorm", hidden)
        self._layers = [_Layer(config, weights, f"encoder.layer.{number}.") for number in range(config.layers)]

    def hidden(self, packed: Packed) -> torch.Tensor:
        """(T, H) of the tokens of `packed`."""
        device = self._words.device
        tokens, types, positions = (
            torch.from_numpy(x).to(device) for x in (packed.tokens, packed.types, packed.positions)
        )
        x = self._words[tokens] + self._places[positions + self._config.first_position]
        # a family without types has one that stands for all
        x += self._types[types] if self._config.types > 1 else self._types[0]
        x = self._norm(x, self._config.norm_eps)
        groups = padded_groups(packed, x.dtype, device)
        for layer in self._layers:
            x = layer(x, groups)
        return x


class _Layer:
    def __init__(self, config: BertConfig, weights: Weights, name: str) -> None:
        hidden, attention = config.hidden, f"{name}attention."
        self._heads, self._eps = config.heads, config.norm_eps
        self._qkv = weights.linear([f"{attention}self.{part}" for part in ("query", "key", "value")], hidden, hidden)
        self._out = weights.linear([f"{attention}output.dense"], hidden, hidden)
        self._attention_norm = weights.norm(f"{attention}output.LayerNorm", hidden)
        self._up = weights.linear([f"{name}intermediate.dense"], hidden, config.ffn, activation=config.activation)
        self._down = weights.linear([f"{name}output.dense"], config.ffn, hidden)
        self._norm = weights.norm(f"{name}output.LayerNorm", hidden)

    def __call__(self, x: torch.Tensor, groups: list[PaddedGroup]) -> torch.Tensor:
        x = self._attention_norm(self._out(self._attend(self._qkv(x), groups)) + x, self._eps)
        return self._norm(self._down(self._up(x)) + x, self._eps)

    def _attend(self, qkv: torch.Tensor, groups: list[PaddedGroup]) -> torch.Tensor:
        """(T, 3 H) -> (T, H)."""
        size = qkv.shape[1] // 3
        mixed = torch.zeros(qkv.shape[0], size, dtype=qkv.dtype, device=qkv.device)
        for group in groups:
            rows, width = group.take.shape
            padded = qkv[group.take.view(-1)].view(rows, width, 3, self._heads, -1)
            q, k, v = padded.permute(2, 0, 3, 1, 4)  # each (rows, heads, width, head_dim)
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
            flat = out.transpose(1, 2).reshape(rows * width, size)
            mixed[group.put] = flat if group.mask is None else flat[group.kept]
        return mixed


Head = Callable[[torch.Tensor], torch.Tensor]
"""Vectors of the first tokens (rows, H) -> logits (rows, 1)."""


def score_head(config: BertConfig, weights: Weights) -> Head:
    """What makes the logit of a cross-encoder, in the form that the family gives it."""
    hidden = config.hidden
    if config.family == "bert":
        dense = weights.linear(["pooler.dense"], hidden, hidden)
        last = weights.linear(["classifier"], hidden, 1, of_body=False)
    else:
        dense = weights.linear(["classifier.dense"], hidden, hidden, of_body=False)
        last = weights.linear(["classifier.out_proj"], hidden, 1, of_body=False)
    return lambda first: last(torch.tanh(dense(first)))


def open_bert(folder: Path, config: BertConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Raises ServingError where there are no weights."""
    return Weights(SafetensorsFile(folder), _FAMILIES[config.family], dtype, device)
