"""Getting a model out of transformers, and the two changes that serving from a paged cache makes to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from backends.api.errors import Code, ServingError
from backends.lm.config_hf import read_json


class GivenHidden(nn.Module):  # type: ignore[misc]
    """Stands where the body was, so that the model's own forward makes logits of hidden states it is given."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        return _BodyOutput(inputs_embeds)


class _BodyOutput:
    """A body's output with hidden states alone, whichever of transformers' output classes the head expects."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, at: int) -> torch.Tensor:
        return (self.last_hidden_state,)[at]


def load_hf(folder: Path, dtype: torch.dtype, attention: str, attend: Callable[..., Any]) -> Any:
    """The causal LM in `folder` with its attention done by `attend`, known to transformers by the name `attention`.

    Raises ServingError: UNSUPPORTED for what transformers does not know, INVALID where weights are missing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(attention, attend)
    kind = read_json(folder / "config.json").get("model_type")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
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
    for problem in ("missing_keys", "mismatched_keys"):
        if info[problem]:
            raise ServingError(
                Code.INVALID,
                f"{folder}: {len(info[problem])} tensors have {problem.split('_')[0]} weights: {sorted(map(str, info[problem]))[:3]}",
            )
    return model.eval()


def fix_frequencies(body: nn.Module, max_length: int, device: torch.device) -> None:
    """Rotary kinds that change with the longest sequence of a batch take those of `max_length` for good.

    Otherwise a long neighbour would change a text, and keys in the pool would not fit later queries.
    """
    for module in body.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
            module(torch.zeros(1, 1, 1, device=device), torch.tensor([[max_length - 1]], device=device))
            module.rope_type = "default"
