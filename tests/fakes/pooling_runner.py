"""A pooling runner without a model: a text's vector says which tokens it was made of, whatever is beside it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from backends.api.model_config import ModelConfig
from backends.pooling.description import Description
from backends.pooling.runner import Row
from backends.pooling.tokenizer import PoolingTokenizer
from backends.text.template import ChatTemplate
from backends.text.tokenizer_files import TokenizerSettings
from scheduler.engine_options import EngineOptions
from scheduler.local_engine import LocalEngine
from scheduler.pooling_engine import PoolingEngine
from scheduler.pooling_model import PoolingModel

DIMENSION, VOCAB, MAX_LEN = 4, 512, 32
CLS, SEP = 256, 257


def expected_vector(tokens: Sequence[int], second: int, dimension: int = DIMENSION) -> np.ndarray:
    """float32 values that no other short text shares."""
    weights = np.arange(1, len(tokens) + 1)
    values = [len(tokens), second, np.dot(weights, tokens), np.sum(tokens)]
    return np.resize(np.array(values[-dimension:], np.float32), dimension)


class FakePoolingRunner:
    """`on_run` sees each batch before it is computed, and may raise."""

    vocab_size = VOCAB

    def __init__(
        self,
        on_run: Callable[[Sequence[Row]], object] = lambda rows: None,
        dimension: int = DIMENSION,
        max_model_len: int = MAX_LEN,
    ) -> None:
        self.on_run = on_run
        self.dimension = dimension
        self.max_model_len = max_model_len

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        self.on_run(rows)
        return np.stack([expected_vector(row.tokens, row.second, self.dimension) for row in rows])


def make_runner(folder: Path, parameters: Mapping[str, str], model_name: str) -> FakePoolingRunner:
    """For an engine in a child process."""
    return FakePoolingRunner()


def toy_tokenizer(**templates: str) -> PoolingTokenizer:
    """A token a byte, between CLS and SEP as BERT has them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    backend.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    return PoolingTokenizer(backend, TokenizerSettings(chat_templates=templates))


def description(task: str = "embed", **changes: object) -> Description:
    values = {
        "folder": Path("/nowhere"),
        "task": task,
        "pooling": "mean",
        "normalize": False,
        "max_model_len": MAX_LEN,
        "dimension": 1 if task == "score" else DIMENSION,
        "vocab_size": VOCAB,
    }
    return Description(**{**values, **changes})


def fake_model(
    name: str = "emb",
    *,
    runner: FakePoolingRunner | None = None,
    max_batch_size: int = 0,
    template: str = "",
    options: EngineOptions | None = None,
    **changes: object,
) -> PoolingModel:
    """A pooling model whose engine runs on a thread; made on the event loop that it serves. `changes`: description's."""
    about = description(**changes)
    runner = runner or FakePoolingRunner(dimension=about.dimension, max_model_len=about.max_model_len)
    options = options or EngineOptions(max_num_seqs=1)
    return PoolingModel(
        ModelConfig(name, backend="pooling", max_batch_size=max_batch_size),
        "1",
        LocalEngine(PoolingEngine(runner, options), options),
        tokenizer=toy_tokenizer(**({"default": template} if template else {})),
        template=ChatTemplate(template) if template else None,
        description=about,
    )
