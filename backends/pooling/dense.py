"""sentence-transformers' Dense module: a layer that a text's vector goes through, in float32."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from backends.api.errors import Code
from backends.lm.config_hf import read_json
from backends.lm.fields import Fields
from backends.lm.safetensors import SafetensorsFile
from backends.lm.weights import weight_error

Dense = Callable[[torch.Tensor], torch.Tensor]
"""(rows, in) float32 -> (rows, out)."""

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Tanh": torch.tanh,
    "Identity": lambda x: x,
    "ReLU": torch.relu,
    "GELU": functional.gelu,
}


def load_dense(folder: Path, device: torch.device) -> Dense:
    """The layer in `folder`. Raises ServingError for files that are missing or do not fit its config.json."""
    fields = Fields(read_json(folder / "config.json"), str(folder / "config.json"))
    shape = (fields.integer("out_features"), fields.integer("in_features"))
    activation = _ACTIVATIONS.get(fields.text("activation_function", "Tanh").rpartition(".")[2])
    if activation is None:
        raise fields.error("activation_function", f"one of {', '.join(_ACTIVATIONS)}", Code.UNSUPPORTED)
    file = SafetensorsFile(folder)
    weight = _tensor(file, "linear.weight", shape, device)
    bias = _tensor(file, "linear.bias", shape[:1], device) if fields.flag("bias", default=True) else None
    return lambda x: activation(functional.linear(x, weight, bias))


def _tensor(file: SafetensorsFile, name: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    weight = file.weight(name)
    if weight.shape != shape:
        raise weight_error(file.path, name, f"shape {shape}", f"{weight.shape}")
    return weight.dequantize(torch.float32).to(device)
