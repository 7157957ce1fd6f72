"""Tiny random models that embed and score, as their users have them: a folder in Hugging Face's layout."""

import json
import string
import warnings
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors

LETTERS = string.ascii_lowercase + string.digits + "?.,"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
MAX_LEN = 64


def write_bert(folder: Path, *, scores: bool = False) -> Any:
    """A BERT with a tokenizer of single letters and, unless it `scores`, sentence-transformers' files. The model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_LEN,
        num_labels=1 if scores else 2,
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config) if scores else transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    if not scores:
        kinds = enumerate(("Transformer", "Pooling", "Normalize"))
        modules = [
            {"idx": i, "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in kinds
        ]
        _write(folder / "modules.json", modules)
        _write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    return model


def reference_vector(model: Any, folder: Path, text: str) -> torch.Tensor:
    """What sentence-transformers does with a text: the mean of its tokens' states, of length 1."""
    ids = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    with torch.no_grad():
        vector = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
    return vector / vector.norm()


def reference_score(model: Any, folder: Path, first: str, second: str) -> float:
    """What a cross-encoder does with a pair."""
    pair = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(first, second)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids])).logits
    return float(torch.sigmoid(logits[0, 0]))


def _tokenizer() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(
        models.WordPiece(dict(zip(VOCABULARY, range(len(VOCABULARY)), strict=True)), unk_token="[UNK]")
    )
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return backend


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
