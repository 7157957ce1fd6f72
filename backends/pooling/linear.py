"""A linear layer whose weights are laid out once for oneDNN where that is at hand, else torch's own."""

from collections.abc import Callable

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor], torch.Tensor]

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "gelu": functional.gelu,
    "relu": functional.relu,
}
_POST_OPS = {"": "none", "gelu": "gelu", "relu": "relu"}
_TYPICAL_ROWS = 512  # for which the layout is chosen; it suits others almost as well


def make_linear(weight: torch.Tensor, bias: torch.Tensor, activation: str = "") -> Linear:
    """x (T, in) -> activation(x @ weight.T + bias) (T, out). `activation` is gelu, relu or "" for none."""
    if weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16):
        try:
            return _laid_out(weight, bias, activation)
        except (AttributeError, RuntimeError, NotImplementedError):
            pass  # the operators are private to torch: another version may lack them
    act = _ACTIVATIONS[activation]
    return lambda x: act(functional.linear(x, weight, bias))


def _laid_out(weight: torch.Tensor, bias: torch.Tensor, activation: str) -> Linear:
    product = torch.ops.mkldnn._linear_pointwise
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    post = _POST_OPS[activation]
    algorithm = "none" if post == "gelu" else ""

    def linear(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = product(x, packed, bias, post, [], algorithm)
        return result

    linear(torch.zeros(1, weight.shape[1], dtype=weight.dtype))  # raises here where it cannot
    return linear
