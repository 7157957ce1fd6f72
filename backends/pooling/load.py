"""From files and options to a runner that is ready: own code for the BERT families, transformers' for the rest."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from backends.lm.device import DTYPES, choose_device
from backends.pooling.bert import BertConfig, BertEncoder, open_bert, read_bert_config, score_head
from backends.pooling.dense import Dense, load_dense
from backends.pooling.description import Description, find_described
from backends.pooling.hf_encoder import HfEncoder
from backends.pooling.options import PoolingOptions
from backends.pooling.packing import pack
from backends.pooling.pool import normalized, pool
from backends.pooling.runner import Row

log = logging.getLogger(__name__)

_ACTIVATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"sigmoid": torch.sigmoid, "identity": lambda x: x}
Compute = Callable[[Sequence[Row]], torch.Tensor]
"""Rows -> (rows, dimension)."""


class Runner:
    """A `PoolingRunner` over `compute`."""

    def __init__(self, description: Description, compute: Compute) -> None:
        self.max_model_len = description.max_model_len
        self.vocab_size = description.vocab_size
        self._compute = compute

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> np.ndarray:
        vectors: np.ndarray = self._compute(rows).float().cpu().numpy()
        return vectors


def load_runner(folder: Path, options: PoolingOptions) -> Runner:
    """The model that `options.model` names, relative to `folder`, warm. Raises ServingError for what is wrong with it."""
    started = time.monotonic()
    description = find_described(folder, options)
    device, dtype = choose_device(options.device), DTYPES.get(options.dtype)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    config = read_bert_config(description.folder)
    if config is None:
        compute = _of_transformers(description, dtype, device)
    else:
        compute = _of_bert(description, config, dtype, device)
    runner = Runner(description, compute)
    runner.run([Row([0] * length, length) for length in (1, min(16, runner.max_model_len))])
    log.info(
        "loaded %s in %.1f s: task %s, %s, by %s",
        description.folder.name,
        time.monotonic() - started,
        description.task,
        str(dtype).removeprefix("torch."),
        "transformers" if config is None else "our encoder",
    )
    return runner


def _of_bert(description: Description, config: BertConfig, dtype: torch.dtype, device: torch.device) -> Compute:
    weights = open_bert(description.folder, config, dtype, device)
    encoder = BertEncoder(config, weights)
    head = score_head(config, weights) if description.task == "score" else None
    dense = [load_dense(folder, device) for folder in description.dense]

    def compute(rows: Sequence[Row]) -> torch.Tensor:
        packed = pack(rows)
        hidden = encoder.hidden(packed)
        starts = torch.from_numpy(packed.starts).to(device)
        if head is not None:
            return _ACTIVATE[description.activation](head(hidden[starts[:-1]]).float())
        return _vectors(hidden, starts, description, dense)

    return compute


def _of_transformers(description: Description, dtype: torch.dtype, device: torch.device) -> Compute:
    scores = description.task == "score"
    encoder = HfEncoder(description.folder, dtype, device, scores=scores)
    dense = [load_dense(folder, device) for folder in description.dense]

    def compute(rows: Sequence[Row]) -> torch.Tensor:
        if scores:
            return _ACTIVATE[description.activation](encoder.logits(rows).float())
        starts = np.cumsum([0, *(len(row.tokens) for row in rows)])
        return _vectors(torch.cat(encoder.hidden(rows)), torch.from_numpy(starts).to(device), description, dense)

    return compute


def _vectors(
    hidden: torch.Tensor, starts: torch.Tensor, description: Description, dense: Sequence[Dense]
) -> torch.Tensor:
    vectors = pool(hidden, starts, description.pooling)
    for layer in dense:
        vectors = layer(vectors)
    return normalized(vectors) if description.normalize else vectors
