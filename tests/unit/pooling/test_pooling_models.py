"""Every kind of model gives what transformers gives for each text alone, whatever texts are beside it."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.api.errors import Code, ServingError
from backends.lm.safetensors import SafetensorsFile
from backends.pooling.bert import read_bert_config
from backends.pooling.load import load_runner
from backends.pooling.options import PoolingOptions
from backends.pooling.runner import Row

VOCAB = 60
OWN = ("bert", "roberta", "xlm-roberta")
FAMILIES = (*OWN, "mpnet", "distilbert", "modernbert", "qwen2")


def ragged(seed: int, count: int = 24) -> list[Row]:
    """Texts of 1 to 60 tokens, many of them of the same length."""
    rng = random.Random(seed)
    lengths = [rng.choice([1, 2, 7, 8, 9, rng.randint(1, 60)]) for _ in range(count)]
    return [Row([rng.randrange(3, VOCAB) for _ in range(length)], rng.randint(0, length)) for length in lengths]


@torch.no_grad()
def own_states(model, row: Row, *, with_types: bool) -> torch.Tensor:
    """(tokens, H) of one text by transformers itself, unpadded."""
    inputs = {"input_ids": torch.tensor([row.tokens])}
    if with_types:
        inputs["token_type_ids"] = (torch.arange(len(row.tokens)) >= row.second).long()[None]
    return model.base_model(**inputs).last_hidden_state[0]


def alone(model, row: Row, how: str, *, with_types: bool) -> np.ndarray:
    """Its vector of length 1, in float64 from the hidden states on."""
    states = own_states(model, row, with_types=with_types).double()
    vector = {"cls": states[0], "last": states[-1], "mean": states.mean(0), "max": states.amax(0)}[how]
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize("how", ["cls", "mean", "max", "last"])
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(make, family, how):
    folder, model = make(family)
    runner = load_runner(folder, PoolingOptions(pooling=how, max_model_len=60))
    rows = ragged(len(family))
    found = runner.run(rows)
    assert (found.dtype, found.shape) == (np.float32, (len(rows), 32))
    for row, vector in zip(rows, found, strict=True):
        wanted = alone(model, row, how, with_types=family == "bert")
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


@pytest.mark.parametrize("family", [*OWN, "distilbert", "qwen2"])
def test_scores_are_those_of_transformers(make, family):
    folder, model = make(family, scores=True)
    runner = load_runner(folder, PoolingOptions(max_model_len=60))
    rows = ragged(3)
    for row, score in zip(rows, runner.run(rows), strict=True):
        inputs = {"input_ids": torch.tensor([row.tokens])}
        if family == "bert":
            inputs["token_type_ids"] = (torch.arange(len(row.tokens)) >= row.second).long()[None]
        with torch.no_grad():
            wanted = torch.sigmoid(model(**inputs).logits[0])
        np.testing.assert_allclose(score, wanted, atol=1e-5)


def test_a_causal_model_is_pooled_at_its_last_token(make):
    folder, model = make("qwen2", causal=True)
    rows = ragged(4)
    for row, vector in zip(rows, load_runner(folder, PoolingOptions()).run(rows), strict=True):
        np.testing.assert_allclose(vector, alone(model, row, "last", with_types=False), atol=1e-5)


def test_of_a_model_with_a_decoder_the_encoder_is_pooled(make):
    folder, model = make("t5", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    rows = ragged(10, 8)
    for row, vector in zip(rows, load_runner(folder, PoolingOptions()).run(rows), strict=True):
        with torch.no_grad():
            mean = model.encoder(input_ids=torch.tensor([row.tokens])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


@pytest.mark.parametrize(("family", "changes"), [("bert", {"hidden_act": "relu"}), ("bert", {"hidden_act": "silu"})])
def test_other_activations(make, family, changes):
    folder, model = make(family, **changes)
    rows = ragged(5, 6)
    for row, vector in zip(rows, load_runner(folder, PoolingOptions()).run(rows), strict=True):
        np.testing.assert_allclose(vector, alone(model, row, "mean", with_types=True), atol=1e-5)


def test_a_text_is_the_same_alone_and_in_a_batch(make):
    runner = load_runner(make("bert")[0], PoolingOptions())
    rows = ragged(6, 32)
    for row, vector in zip(rows, runner.run(rows), strict=True):
        np.testing.assert_allclose(runner.run([row])[0], vector, atol=1e-6)


def test_vectors_are_as_long_as_the_model_makes_them_without_normalization(make):
    folder, _ = make("bert")
    rows = ragged(7, 4)
    free, unit = (load_runner(folder, PoolingOptions(normalize=flag)).run(rows) for flag in (False, True))
    lengths = np.linalg.norm(free, axis=1, keepdims=True)
    assert abs(lengths - 1).min() > 0.01
    np.testing.assert_allclose(free / lengths, unit, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_half_precision_is_near(make, family, dtype):
    folder, _ = make(family)
    rows = ragged(8, 8)
    exact, near = (load_runner(folder, PoolingOptions(dtype=name)).run(rows) for name in ("float32", dtype))
    assert (exact * near).sum(1).min() > 0.99


def test_weights_with_the_names_of_the_first_checkpoints(make):
    """LayerNorm.gamma and .beta, under the prefix of a model with a head."""
    folder, model = make("bert")
    old = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model.state_dict().items()
    }
    save(folder, old)
    rows = ragged(9, 4)
    for row, vector in zip(rows, load_runner(folder, PoolingOptions()).run(rows), strict=True):
        np.testing.assert_allclose(vector, alone(model, row, "mean", with_types=True), atol=1e-5)


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: value.clone() for name, value in tensors.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_dense_layers_come_between_pooling_and_normalization(make, write, family):
    folder, model = make(family)
    kinds = ("Transformer", "Pooling", "Dense", "Dense", "Normalize")
    modules = [{"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    first = {"in_features": 32, "out_features": 64, "bias": False, "activation_function": "torch.nn.Identity"}
    second = {"in_features": 64, "out_features": 5, "activation_function": "torch.nn.modules.activation.Tanh"}
    write(
        **{
            "modules.json": modules,
            "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
            "2_Dense/config.json": first,
            "3_Dense/config.json": second,
        }
    )
    torch.manual_seed(1)
    up, down, bias = torch.randn(64, 32), torch.randn(5, 64) * 0.1, torch.randn(5)
    save(folder / "2_Dense", {"linear.weight": up})
    save(folder / "3_Dense", {"linear.weight": down, "linear.bias": bias})
    rows = ragged(11, 8)
    found = load_runner(folder, PoolingOptions()).run(rows)
    assert found.shape == (8, 5)
    for row, vector in zip(rows, found, strict=True):
        states = own_states(model, row, with_types=family == "bert")
        wanted = torch.tanh(down @ (up @ states.mean(0)) + bias)
        np.testing.assert_allclose(vector, wanted / wanted.norm(), atol=1e-5)


def test_a_missing_or_misshapen_tensor_is_named(make):
    folder, model = make("bert")
    tensors = dict(model.state_dict())
    name = "encoder.layer.1.output.dense.weight"
    save(folder, {**tensors, name: torch.zeros(3, 4)})
    with pytest.raises(ServingError, match=rf"{name}.*shape \(32, 48\), got \(3, 4\)"):
        load_runner(folder, PoolingOptions())
    del tensors[name]
    save(folder, tensors)
    with pytest.raises(ServingError, match=rf"{name}.*nothing"):
        load_runner(folder, PoolingOptions())


def test_what_transformers_cannot_load_says_so(make):
    folder, _ = make("distilbert")
    (folder / "model.safetensors").write_bytes(b"\x08" + b"\0" * 7 + b"{}      ")
    with pytest.raises(ServingError) as caught:
        load_runner(folder, PoolingOptions())
    assert caught.value.code in (Code.INVALID, Code.UNSUPPORTED)
    assert "distilbert" in caught.value.message or "missing" in caught.value.message


def test_variants_that_our_encoder_does_not_compute_are_left_to_transformers(make):
    folder, _ = make("bert", hidden_act="silu")
    assert read_bert_config(folder) is None
    assert SafetensorsFile(folder).names()
