"""A GGUF in every format, laid out as llama.cpp's converter does, gives the logits of its dequantised values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from backends.api.errors import Code, ServingError
from backends.lm.checkpoint import Checkpoint, GgufWeights
from backends.lm.config_gguf import read_gguf_config
from backends.lm.dequantize import FORMATS
from backends.lm.gguf import read_gguf
from backends.lm.model import Decoder
from backends.lm.torch_ops import TorchOps

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 96}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True}, {}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", {"head_dim": 32}, {}),
    "gemma": ("gemma", {"head_dim": 32}, {}),
    "gemma2": (
        "gemma2",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5, "attn_logit_softcapping": 3.0},
        {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 30.0, "attention.sliding_window": 5},
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 5, "num_hidden_layers": 7}
        | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}},
        {"attention.sliding_window": 5, "rope.freq_base": 1e6, "rope.scaling.type": "linear"}
        | {"rope.scaling.factor": 8.0},
    ),
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The converter's reordering of a llama's query and key rows."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class Written:
    """Writes `model` to a GGUF, giving its matrices random values of `format_name` on the way."""

    def __init__(self, path: Path, architecture: str, model: Any, random_rows: Callable, format_name: str) -> None:
        self.writer = gguf.GGUFWriter(path, architecture)
        self.architecture = architecture
        self.model = model
        self.random_rows = random_rows
        self.format_name = format_name

    def metadata(self, extra: dict[str, Any]) -> None:
        config = self.model.config
        self.writer.add_block_count(config.num_hidden_layers)
        self.writer.add_context_length(config.max_position_embeddings)
        self.writer.add_embedding_length(config.hidden_size)
        self.writer.add_feed_forward_length(config.intermediate_size)
        self.writer.add_head_count(config.num_attention_heads)
        self.writer.add_head_count_kv(config.num_key_value_heads)
        self.writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if getattr(config, "head_dim", None):
            self.writer.add_key_length(config.head_dim)
            self.writer.add_value_length(config.head_dim)
        for key, value in extra.items():
            add = self.writer.add_string if isinstance(value, str) else self.writer.add_float32
            (self.writer.add_uint32 if isinstance(value, int) else add)(f"{self.architecture}.{key}", value)
        self.writer.add_eos_token_id(2)

    def tensors(self) -> None:
        names = NAMES | (GEMMA_NAMES if self.architecture in ("gemma2", "gemma3") else {})
        tied = self.model.config.tie_word_embeddings
        for number, (name, parameter) in enumerate(self.model.named_parameters()):
            stem, kind = name.rsplit(".", 1)
            layer = stem.removeprefix("model.layers.").split(".", 1) if ".layers." in name else None
            stored = f"blk.{layer[0]}.{names[layer[1]]}.{kind}" if layer else f"{names[stem]}.{kind}"
            if parameter.dim() == 2:
                self._matrix(stored, parameter, number)
            elif not (tied and stored.startswith("output.")):
                self._vector(stored, parameter)

    def _matrix(self, stored: str, parameter: torch.nn.Parameter, seed: int) -> None:
        rows, values = parameter.shape
        raw = self.random_rows(self.format_name, rows, values, seed)
        kind = gguf.GGMLQuantizationType[self.format_name]
        typed = raw.view({"F32": "<f4", "F16": "<f2"}.get(self.format_name, np.uint8))
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(typed, kind).astype(np.float32)))
        self.writer.add_tensor(stored, self._ordered(stored, typed), raw_dtype=kind)

    def _vector(self, stored: str, parameter: torch.nn.Parameter) -> None:
        values = parameter.detach().numpy()
        if self.architecture.startswith("gemma"):
            values = values + 1
        self.writer.add_tensor(stored, self._ordered(stored, values))

    def _ordered(self, stored: str, rows: np.ndarray) -> np.ndarray:
        if self.architecture != "llama" or not any(part in stored for part in ("attn_q.", "attn_k.")):
            return rows
        config = self.model.config
        heads = config.num_attention_heads if "attn_q." in stored else config.num_key_value_heads
        return interleaved(rows, heads)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


@pytest.fixture
def written(tmp_path: Path, tiny: Callable, random_rows: Callable) -> Callable[[str, str], tuple[Path, Any]]:
    def write(name: str, format_name: str) -> tuple[Path, Any]:
        family, changes, extra = FAMILIES[name]
        model = tiny(family, **SIZES | HEADS | changes)
        path = tmp_path / f"{name}.gguf"
        file = Written(path, name, model, random_rows, format_name)
        file.metadata(extra)
        file.tensors()
        file.close()
        return path, model

    return write


def load(path: Path) -> Decoder:
    file = read_gguf(path)
    checkpoint = Checkpoint(read_gguf_config(file), GgufWeights(file))
    ops = TorchOps(torch.float32, torch.device("cpu"))
    return Decoder(checkpoint, ops, num_blocks=32, block_size=4, max_length=64)


def assert_same(path: Path, model: Any, dense_logits: Callable, paged: Callable) -> None:
    tokens = np.random.default_rng(5).integers(0, 96, 19).tolist()
    got, want = paged(load(path), 32).step({0: tokens})[0], dense_logits(model, tokens)
    assert want.std() > 0.1
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_llama_in_any_format_gives_the_logits_of_its_values(
    format_name: str, written: Callable, dense_logits: Callable, paged: Callable
) -> None:
    assert_same(*written("llama", format_name), dense_logits, paged)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama"])
def test_every_family_gives_the_logits_of_its_values(
    name: str, written: Callable, dense_logits: Callable, paged: Callable
) -> None:
    assert_same(*written(name, "Q8_0"), dense_logits, paged)


def test_frequency_divisors_of_a_llama_3_are_its_scaling(
    tmp_path: Path, tiny: Callable, random_rows: Callable, dense_logits: Callable, paged: Callable
) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 32, "rope_theta": 1e4}
    model = tiny("llama", **SIZES | HEADS | {"rope_parameters": scaling})
    file = Written(tmp_path / "m.gguf", "llama", model, random_rows, "F32")
    file.metadata({})
    file.tensors()
    plain = 1e4 ** -(torch.arange(0, 64, 2) / 64)
    file.writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    file.close()
    assert_same(tmp_path / "m.gguf", model, dense_logits, paged)


def test_a_file_without_its_last_bytes_is_said_to_be_cut_off(written: Callable) -> None:
    path, _ = written("llama", "Q4_1")
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(ServingError, match=r"llama\.gguf: tensor '.*': expected \d+ bytes, got \d+: the file is cut"):
        load(path)


def test_an_unsupported_quantisation_names_the_tensor(tmp_path: Path, written: Callable) -> None:
    path, _ = written("llama", "F32")
    whole = bytearray(path.read_bytes())
    at = whole.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4 + 16
    whole[at : at + 4] = (17).to_bytes(4, "little")
    path.write_bytes(whole)
    with pytest.raises(
        ServingError, match=r"'blk\.1\.ffn_up\.weight': expected one of .*, got format IQ2_XS"
    ) as caught:
        load(path)
    assert caught.value.code is Code.UNSUPPORTED


def test_an_unknown_architecture_is_named_with_those_we_know(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ServingError, match=r"general\.architecture': expected one of llama, .*, got 'mamba'") as caught:
        read_gguf_config(read_gguf(tmp_path / "m.gguf"))
    assert caught.value.code is Code.UNSUPPORTED


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(written: Callable) -> None:
    path, _ = written("qwen2", "F32")
    whole = path.read_bytes().replace(
        b"feed_forward_length\x04\x00\x00\x00\x00\x02", b"feed_forward_length\x04\x00\x00\x00\x80\x01"
    )
    path.write_bytes(whole)
    with pytest.raises(
        ServingError,
        match=r"qwen2\.gguf: tensor 'blk\.0\.ffn_gate\.weight': expected shape \[384, 256\], got \[512, 256\]",
    ):
        load(path)
