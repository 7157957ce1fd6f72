"""Getting a model out of transformers, and the two changes that serving from a paged cache makes to it."""

from collections.abc import Callable, Mapping
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
    config = load_pretrained(AutoConfig, folder)
    model, info = load_pretrained(
        AutoModelForCausalLM,
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        use_safetensors=True,
        output_loading_info=True,
    )
    check_all_loaded(folder, info)
    return model.eval()


def load_pretrained(auto: Any, folder: Path, **options: Any) -> Any:
    """What `auto`, one of transformers' Auto classes, makes of the files in `folder`: nothing is fetched, no code of theirs is run.

    Raises ServingError(UNSUPPORTED) that names the model's type, whatever transformers raised.
    """
    try:
        return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except Exception as cause:
        kind = read_json(folder / "config.json").get("model_type")
        text = str(cause).strip().split("\n")[0]
        raise ServingError(
            Code.UNSUPPORTED, f"{folder}: transformers cannot load model type {kind!r}: {text}"
        ) from cause


def check_all_loaded(folder: Path, info: Mapping[str, Any], *, without: str | None = None) -> None:
    """Raise ServingError(INVALID) for weights that transformers made up, apart from those whose names begin with `without`."""
    for problem in ("missing", "mismatched"):
        names = sorted(str(key) for key in info[f"{problem}_keys"])
        if problem == "missing" and without is not None:
            names = [name for name in names if not name.startswith(without)]
        if names:
            raise ServingError(Code.INVALID, f"{folder}: {len(names)} tensors have {problem} weights: {names[:3]}")


def fix_frequencies(body: nn.Module, max_length: int, device: torch.device) -> None:
    """Rotary kinds that change with the longest sequence of a batch take those of `max_length` for good.

    Otherwise a long neighbour would change a text, and keys in the pool would not fit later queries.
    """
    for module in body.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
            module(torch.zeros(1, 1, 1, device=device), torch.tensor([[max_length - 1]], device=device))
            module.rope_type = "default"
