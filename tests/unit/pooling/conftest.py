"""Tiny random models of every kind, saved as users have them."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

VOCAB = 60
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
# what the families call it, or have beside it
_CHANGES: dict[str, dict[str, Any]] = {
    "bert": {"pad_token_id": 0},
    "roberta": {"type_vocab_size": 1},
    "xlm-roberta": {"type_vocab_size": 1},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "modernbert": {"cls_token_id": 0, "sep_token_id": 2, "local_attention": 8, "global_attn_every_n_layers": 2},
    "qwen2": {"num_key_value_heads": 2, "sliding_window": None},
}

Make = Callable[..., tuple[Path, Any]]


@pytest.fixture
def make(tmp_path) -> Make:
    """make("bert", scores=True, hidden_act="relu") -> its folder and the model of transformers that is in it."""

    def save(family: str, *, scores: bool = False, causal: bool = False, **changes: Any) -> tuple[Path, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers
        auto = transformers.AutoModel
        if scores:
            auto, changes = transformers.AutoModelForSequenceClassification, {"num_labels": 1} | changes
        elif causal:
            auto = transformers.AutoModelForCausalLM
        config = transformers.AutoConfig.for_model(family, **{**_COMMON, **_CHANGES.get(family, {}), **changes})
        torch.manual_seed(0)
        model = auto.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():  # large enough that every part shows in the result
                parameter.normal_(0, 0.3)
        model.save_pretrained(tmp_path)
        return tmp_path, model

    return save


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """write(**{"config.json": {...}}) -> the folder with these files in it, as JSON."""

    def save(**files: Any) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        return tmp_path

    return save
