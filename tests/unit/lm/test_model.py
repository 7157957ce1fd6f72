"""Every family's logits are those of transformers, whole and in pieces, from every file layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.api.errors import ServingError
from backends.lm.checkpoint import Checkpoint
from backends.lm.config_hf import read_hf_config
from backends.lm.cpu import cpu_ops
from backends.lm.model import Decoder
from backends.lm.ops import Ops
from backends.lm.safetensors import SafetensorsFile
from backends.lm.torch_ops import TorchOps

GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 5}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases and tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama with wide heads": ("llama", {"head_dim": 16}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral with a window": ("mistral", {"sliding_window": 6}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma3": ("gemma3_text", {**GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
        "beta_fast": 16.0,
        "truncate": False,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
}


def load(folder: Path, max_length: int = 64, ops: Ops | None = None) -> Decoder:
    config = read_hf_config(folder)
    assert config is not None
    ops = ops or TorchOps(torch.float32, torch.device("cpu"))
    checkpoint = Checkpoint(config, SafetensorsFile(folder))
    return Decoder(checkpoint, ops, num_blocks=64, block_size=4, max_length=max_length)


def sequences() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 97, n).tolist() for n in (23, 31, 17)]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers_whole_and_in_pieces(
    name: str, tiny: Callable, dense_logits: Callable, folder_of: Callable, paged: Callable, in_pieces: Callable
) -> None:
    family, changes = FAMILIES[name]
    model = tiny(family, **changes)
    decoder = load(folder_of(model))
    expected = [dense_logits(model, tokens) for tokens in sequences()]
    whole = paged(decoder).step(dict(enumerate(sequences())))
    pieces = in_pieces(decoder, sequences())
    for s, want in enumerate(expected):
        torch.testing.assert_close(whole[s], want, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(pieces[s], want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_cpu_kernels_give_the_same_logits_as_one_call(
    name: str, tiny: Callable, dense_logits: Callable, folder_of: Callable, in_pieces: Callable
) -> None:
    family, changes = FAMILIES[name]
    model = tiny(family, **changes | {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16})
    try:
        ops = cpu_ops("float32", 2)
    except ServingError as refused:  # a processor without what the kernels need
        pytest.skip(refused.message)
    pieces = in_pieces(load(folder_of(model), ops=ops), sequences())
    ops.close()
    for tokens, got in zip(sequences(), pieces, strict=True):
        torch.testing.assert_close(got, dense_logits(model, tokens), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ROPES)
def test_scaled_rotary_embeddings_are_those_of_transformers(
    name: str, tiny: Callable, dense_logits: Callable, folder_of: Callable, paged: Callable
) -> None:
    model = tiny("llama", rope_parameters={"rope_theta": 5000.0, **ROPES[name]})
    tokens = sequences()[1]
    got = paged(load(folder_of(model))).step({0: tokens})[0]
    torch.testing.assert_close(got, dense_logits(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_past_the_trained_length_frequencies_are_those_of_the_longest_sequence(
    kind: str, tiny: Callable, dense_logits: Callable, folder_of: Callable, paged: Callable
) -> None:
    model = tiny(
        "llama",
        max_position_embeddings=24,
        rope_parameters={"rope_theta": 5000.0, **ROPES[kind]} | {"original_max_position_embeddings": 24},
    )
    tokens = sequences()[1]
    got = paged(load(folder_of(model), max_length=len(tokens))).step({0: tokens})[0]
    torch.testing.assert_close(got, dense_logits(model, tokens), atol=1e-4, rtol=1e-4)


def test_a_sharded_checkpoint_gives_the_same_logits(tiny: Callable, folder_of: Callable, paged: Callable) -> None:
    model = tiny("qwen3", head_dim=12)
    sharded = folder_of(model, max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    tokens = sequences()[0]
    one, many = (paged(load(folder)).step({0: tokens})[0] for folder in (folder_of(model), sharded))
    assert torch.equal(one, many)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_checkpoints_give_their_values(
    dtype: torch.dtype, tiny: Callable, folder_of: Callable, dense_logits: Callable, paged: Callable
) -> None:
    import transformers

    folder = folder_of(tiny("llama").to(dtype))
    tokens = sequences()[0]
    want = dense_logits(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokens)
    torch.testing.assert_close(paged(load(folder)).step({0: tokens})[0], want, atol=1e-4, rtol=1e-4)
