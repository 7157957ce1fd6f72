"""Families we have no code of our own for run by transformers' modelling over our pool, with the same logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from backends.api.errors import Code, ServingError
from backends.lm.hf_model import HfModel
from backends.lm.torch_ops import TorchOps

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}),
    "gpt_neox": ("gpt_neox", {}),
    "phi3 with a window": ("phi3", {"sliding_window": 6}),
    "olmo2": ("olmo2", {}),
    "starcoder2": ("starcoder2", {"sliding_window": 5}),
    "granite": ("granite", {"logits_scaling": 4.0, "residual_multiplier": 0.5}),
    "cohere2": ("cohere2", {"sliding_window": 5, "head_dim": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "stablelm": ("stablelm", {}),
}
CPU = torch.device("cpu")


def load(folder: Path, max_length: int = 64) -> HfModel:
    model = HfModel(folder, torch.float32, CPU, max_length)
    model.allocate(TorchOps(torch.float32, CPU), num_blocks=64, block_size=4)
    return model


def sequences() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 97, n).tolist() for n in (23, 31, 17)]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers_whole_and_in_pieces(
    name: str, tiny: Callable, dense_logits: Callable, folder_of: Callable, paged: Callable, in_pieces: Callable
) -> None:
    family, changes = FAMILIES[name]
    reference = tiny(family, **changes)
    model = load(folder_of(reference))
    expected = [dense_logits(reference, tokens) for tokens in sequences()]
    whole = paged(model).step(dict(enumerate(sequences())))
    for s, pieces in enumerate(in_pieces(model, sequences())):
        torch.testing.assert_close(whole[s], expected[s], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(pieces, expected[s], atol=1e-4, rtol=1e-4)


def test_a_long_neighbour_does_not_change_frequencies(tiny: Callable, folder_of: Callable, paged: Callable) -> None:
    scaling = {"rope_type": "longrope", "rope_theta": 5000.0, "original_max_position_embeddings": 24}
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}
    model = load(folder_of(tiny("phi3", original_max_position_embeddings=24, rope_parameters=scaling | factors)))
    alone = paged(model).step({0: sequences()[2]})[0]
    beside = paged(model).step({0: sequences()[2], 1: sequences()[1]})[0]
    torch.testing.assert_close(beside, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "changes"), [("bloom", {}), ("mamba", {}), ("gpt_oss", {"head_dim": 8}), ("mpt", {"n_heads": 6})]
)
def test_what_cannot_be_paged_is_refused_at_load(
    family: str, changes: dict[str, Any], tiny: Callable, folder_of: Callable
) -> None:
    folder = folder_of(tiny(family, **changes))
    with pytest.raises(ServingError, match="expected a decoder whose attention can use a paged cache") as caught:
        load(folder)
    assert caught.value.code is Code.UNSUPPORTED


def test_missing_weights_are_never_filled_with_noise(tiny: Callable, folder_of: Callable) -> None:
    from safetensors.torch import load_file, save_file

    folder = folder_of(tiny("olmo2"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ServingError, match=r"1 tensors have missing weights: \['model\.layers\.1\.mlp\.up_proj\.weight'\]"
    ):
        load(folder)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "not_yet_invented"}')
    with pytest.raises(ServingError, match="transformers cannot load model type 'not_yet_invented'") as caught:
        load(tmp_path)
    assert caught.value.code is Code.UNSUPPORTED
