"""Configs of every age and family are read alike, and what is wrong with one is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.lm.config import LmConfig, Rope
from backends.lm.config_hf import read_hf_config
from backends.lm.load import load_runner, open_checkpoint
from backends.lm.options import LmOptions

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., LmConfig | None]:
    def read_with(**changes: Any) -> LmConfig | None:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        return read_hf_config(tmp_path)

    return read_with


def test_what_a_config_leaves_out_has_transformers_default(read: Callable) -> None:
    config = read()
    assert (config.num_kv_heads, config.head_dim, config.norm_eps, config.tied) == (4, 16, 1e-6, False)
    assert config.ropes == (Rope(16, 10_000.0, max_length=512),) * 2
    assert config.windows == (0, 0)
    assert config.eos_token_ids == ()


@pytest.mark.parametrize(
    "scaling",
    [
        {"factor": 4.0, "rope_type": "linear"},
        {"factor": 2.0, "rope_type": "dynamic"},
        {"factor": 8.0, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": 128},
        {"factor": 4.0, "rope_type": "yarn", "original_max_position_embeddings": 128},
    ],
)
def test_rotary_scaling_reads_alike_in_old_and_new_form(scaling: dict[str, Any], read: Callable) -> None:
    new = read(rope_parameters={"rope_theta": 5e5, **scaling})
    old = read(rope_theta=5e5, rope_scaling=scaling)
    older = {"type" if name == "rope_type" else name: value for name, value in scaling.items()}
    assert new == old == read(rope_theta=5e5, rope_scaling=older)
    assert new.ropes[0].kind == scaling["rope_type"]
    assert new.ropes[0].theta == 5e5


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 512),
    ],
)
def test_the_longest_sequence_counts_scaling_in(scaling: dict[str, Any], longest: int, read: Callable) -> None:
    assert read(rope_scaling=scaling).max_positions == longest


def test_gemma_3_reads_alike_in_old_new_and_multimodal_form(read: Callable) -> None:
    common = {"num_hidden_layers": 7, "head_dim": 16, "num_key_value_heads": 1, "sliding_window": 32}
    kinds = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    new = read(
        model_type="gemma3_text",
        layer_types=kinds,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        **common,
    )
    old_fields = {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    assert read(model_type="gemma3_text", sliding_window_pattern=6, **old_fields, **common) == new
    text = LLAMA | common | old_fields | {"model_type": "gemma3_text"}
    assert read(model_type="gemma3", text_config=text) == new
    assert new.windows == (32, 32, 32, 32, 32, 0, 32)
    assert [rope.theta for rope in new.ropes] == [1e4] * 5 + [1e6, 1e4]


def test_a_text_ends_at_the_tokens_of_generation_config_and_at_the_chats(read: Callable, tmp_path: Path) -> None:
    assert read(eos_token_id=2).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert read(eos_token_id=2).eos_token_ids == (5, 7)
    tokenizer = {"eos_token": {"content": "<|im_end|>"}, "added_tokens_decoder": {"9": {"content": "<|im_end|>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    assert read(eos_token_id=2).eos_token_ids == (5, 7, 9)


def test_variants_that_lean_code_does_not_compute_go_to_transformers(read: Callable) -> None:
    assert read(model_type="olmo2") is None
    assert read(partial_rotary_factor=0.5) is None
    assert read(model_type="gemma", use_bidirectional_attention=True) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "field 'hidden_size': expected an integer, got None"),
        ({"hidden_size": "64"}, "field 'hidden_size': expected an integer of at least 1, got '64'"),
        ({"num_hidden_layers": 0}, "field 'num_hidden_layers': expected an integer of at least 1, got 0"),
        ({"num_key_value_heads": 3}, "field 'num_key_value_heads': expected a divisor of 4 heads, got 3"),
        ({"rms_norm_eps": -1}, "field 'rms_norm_eps': expected a positive number, got -1"),
        ({"hidden_act": "relu6"}, "field 'hidden_act': expected one of silu"),
        ({"rope_scaling": {"rope_type": "new"}}, "rope_scaling: field 'rope_type': expected default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: field 'factor': expected a number, got nothing"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}}, "'short_factor': expected 8 numbers"),
        ({"rope_scaling": 3}, "field 'rope_scaling': expected an object, got 3"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "field 'layer_types': expected 2 of"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "expected plain float weights or a GGUF file, got method 'awq'",
        ),
    ],
)
def test_a_bad_field_is_named_with_file_expectation_and_value(
    changes: dict[str, Any], message: str, read: Callable
) -> None:
    with pytest.raises(ServingError) as caught:
        read(**changes)
    assert message in caught.value.message
    assert "config.json" in caught.value.message


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b'{"model_type": '])
def test_a_broken_config_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ServingError, match=r"config\.json: (not readable JSON|expected a JSON object)"):
        read_hf_config(tmp_path)


def load(folder: Path) -> None:
    load_runner(Path(), LmOptions(model=str(folder), dtype="float32"))


def test_missing_weights_are_named_and_pickles_refused(read: Callable, tmp_path: Path) -> None:
    read()
    with pytest.raises(ServingError, match=r"model\.safetensors: no such file$") as caught:
        load(tmp_path)
    assert caught.value.code is Code.NOT_FOUND
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ServingError, match=r"no such file; pytorch_model\.bin is a pickle, which is not read"):
        load(tmp_path)


def test_a_cut_off_safetensors_file_is_a_clear_error(tiny: Callable, folder_of: Callable) -> None:
    folder = folder_of(tiny("llama"))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ServingError, match=r"model\.safetensors: the file is cut off or damaged"):
        load(folder)


def test_a_missing_shard_and_a_missing_tensor_are_named(tiny: Callable, folder_of: Callable) -> None:
    folder = folder_of(tiny("llama"), max_shard_size="40KB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    removed = index["weight_map"].pop("model.layers.1.mlp.up_proj.weight")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ServingError, match=r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight': expected to be there"):
        load(folder)
    (folder / removed).unlink()
    with pytest.raises(ServingError, match=rf"{removed}: no such file"):
        load(folder)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tiny: Callable, folder_of: Callable) -> None:
    folder = folder_of(tiny("llama"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    with pytest.raises(ServingError, match=r"mlp\.gate_proj\.weight': expected shape \[96, 48\], got \[80, 48\]"):
        load(folder)


def test_formats_that_are_not_read_are_named(tiny: Callable, folder_of: Callable) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = folder_of(tiny("llama"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ServingError, match=r"'model\.norm\.weight': expected one of F32.*got format float8_e4m3fn"):
        load(folder)


def test_a_checkpoint_without_a_head_is_tied_whatever_its_config_says(tiny: Callable, folder_of: Callable) -> None:
    folder = folder_of(tiny("llama", tie_word_embeddings=True))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    checkpoint, stated = open_checkpoint(folder), read_hf_config(folder)
    assert checkpoint is not None
    assert stated is not None
    assert checkpoint.config == replace(stated, tied=True)
