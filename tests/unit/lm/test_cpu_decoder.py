"""Whole decoders on CPU kernels: transformers' logits in float32, and one result however the work is cut."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.lm.checkpoint import Checkpoint
from backends.lm.config_hf import read_hf_config
from backends.lm.cpu import cpu_ops
from backends.lm.cpu.features import cpu_features
from backends.lm.model import Decoder
from backends.lm.safetensors import SafetensorsFile

pytestmark = pytest.mark.skipif(not cpu_features().avx512, reason="kernels for AVX-512")

_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 5}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases and tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral with a window": ("mistral", {"sliding_window": 6}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {**_GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma3": ("gemma3_text", {**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
}


def sequences() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 97, n).tolist() for n in (23, 31, 17)]


def load(folder: Path, dtype: str) -> Decoder:
    config = read_hf_config(folder)
    assert config is not None
    checkpoint = Checkpoint(config, SafetensorsFile(folder))
    return Decoder(checkpoint, cpu_ops(dtype, 2), num_blocks=64, block_size=4, max_length=64)


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_logits_are_those_of_transformers_whole_and_in_pieces(
    name: str, tiny: Callable, dense_logits: Callable, folder_of: Callable, paged: Callable, in_pieces: Callable
) -> None:
    family, changes = FAMILIES[name]
    model = tiny(family, **changes)
    decoder = load(folder_of(model), "float32")
    whole = paged(decoder).step(dict(enumerate(sequences())))
    for s, pieces in enumerate(in_pieces(decoder, sequences())):
        torch.testing.assert_close(whole[s], dense_logits(model, sequences()[s]), rtol=1e-3, atol=1e-3)
        assert torch.equal(pieces, whole[s])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_bfloat16_results_are_the_same_bit_for_bit_however_the_work_is_cut(
    name: str, tiny: Callable, folder_of: Callable, paged: Callable, in_pieces: Callable
) -> None:
    family, changes = FAMILIES[name]
    decoder = load(folder_of(tiny(family, **changes)), "bfloat16")
    whole = paged(decoder).step(dict(enumerate(sequences())))
    for s, pieces in enumerate(in_pieces(decoder, sequences())):
        alone = paged(decoder).step({0: sequences()[s]})[0]
        assert torch.equal(pieces, whole[s])
        assert torch.equal(alone, whole[s])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama with biases and tied", "gemma2", "qwen3"])
def test_the_fused_decoder_computes_what_its_operations_compute(
    name: str, dtype: str, tiny: Callable, folder_of: Callable, in_pieces: Callable
) -> None:
    family, changes = FAMILIES[name]
    decoder = load(folder_of(tiny(family, **changes)), dtype)
    fused = in_pieces(decoder, sequences())
    decoder._fused = None
    for together, one_by_one in zip(fused, in_pieces(decoder, sequences()), strict=True):
        assert torch.equal(together, one_by_one)
