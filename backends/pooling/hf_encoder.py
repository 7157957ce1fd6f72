"""Any other model by transformers' own modelling, in padded batches of rows of similar length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from backends.lm.config_hf import read_json
from backends.lm.hf_loading import check_all_loaded, load_pretrained
from backends.pooling.packing import similar
from backends.pooling.runner import Row

_MAX_TOKENS = 16_384  # of a padded batch, so that its memory is bounded whatever the rows are


class HfEncoder:
    """A model of transformers in `folder`: `AutoModel`, or with `scores` `AutoModelForSequenceClassification`."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, *, scores: bool) -> None:
        """Raises ServingError: UNSUPPORTED for what transformers does not know, INVALID where weights are missing."""
        self._model = _load(folder, dtype, scores=scores).to(device)
        self._device = device
        config = self._model.config.get_text_config()
        self._takes_types = (getattr(config, "type_vocab_size", 0) or 0) > 1
        self._pad: int | None = config.pad_token_id
        # a decoder that scores looks for the last token by the padding's number; without one rows stay alone
        self._pads = self._pad is not None or not scores

    def hidden(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """(tokens, H) of each row."""
        found: dict[int, torch.Tensor] = {}
        for group, output in self._outputs(rows):
            for index, states in zip(group, output.last_hidden_state, strict=True):
                found[index] = states[: len(rows[index].tokens)]
        return [found[index] for index in range(len(rows))]

    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """(rows, 1)."""
        found: dict[int, torch.Tensor] = {}
        for group, output in self._outputs(rows):
            found |= zip(group, output.logits, strict=True)
        return torch.stack([found[index] for index in range(len(rows))])

    def _outputs(self, rows: Sequence[Row]) -> list[tuple[list[int], Any]]:
        groups = similar([len(row.tokens) for row in rows], _MAX_TOKENS)
        if not self._pads:
            groups = [[index] for index in range(len(rows))]
        return [(group, self._forward([rows[index] for index in group])) for group in groups]

    def _forward(self, rows: list[Row]) -> Any:
        shape = (len(rows), len(rows[0].tokens))  # the longest comes first
        tokens = torch.full(shape, self._pad or 0)
        mask, types = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        for index, row in enumerate(rows):
            length = len(row.tokens)
            tokens[index, :length] = torch.tensor(row.tokens)
            mask[index, :length] = 1
            types[index, row.second : length] = 1
        inputs = {"input_ids": tokens, "attention_mask": mask}
        if self._takes_types:
            inputs["token_type_ids"] = types
        return self._model(**{name: tensor.to(self._device) for name, tensor in inputs.items()})


def _load(folder: Path, dtype: torch.dtype, *, scores: bool) -> Any:
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTextEncoding
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # what an engine prints goes to the log, line by line
    auto = AutoModelForSequenceClassification if scores else AutoModel
    if read_json(folder / "config.json").get("is_encoder_decoder") and not scores:
        auto = AutoModelForTextEncoding  # the encoder alone, as of T5
    model, info = load_pretrained(auto, folder, dtype=dtype, use_safetensors=True, output_loading_info=True)
    # a head that makes one vector of the first token, which no pooling here uses, is often not in the file
    check_all_loaded(folder, info, without=None if scores else "pooler.")
    return model.eval()
