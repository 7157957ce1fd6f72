"""Any other model by transformers' own modelling, in padded batches of rows of similar length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from backends.api.errors import Code, ServingError
from backends.lm.config_hf import read_json
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
    config = read_json(folder / "config.json")
    auto, kind = AutoModelForSequenceClassification if scores else AutoModel, config.get("model_type")
    if config.get("is_encoder_decoder") and not scores:
        auto = AutoModelForTextEncoding  # the encoder alone, as of T5
    try:
        model, info = auto.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as cause:
        text = str(cause).strip().split("\n")[0]
        raise ServingError(
            Code.UNSUPPORTED, f"{folder}: transformers cannot load model type {kind!r}: {text}"
        ) from cause
    # a head that makes one vector of the first token, which no pooling here uses, is often not in the file
    missing = sorted(str(key) for key in info["missing_keys"] if scores or not str(key).startswith("pooler."))
    for problem, keys in (("missing", missing), ("mismatched", sorted(map(str, info["mismatched_keys"])))):
        if keys:
            raise ServingError(Code.INVALID, f"{folder}: {len(keys)} tensors have {problem} weights: {keys[:3]}")
    return model.eval()
