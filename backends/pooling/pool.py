"""From the vectors of a text's tokens to the text's own."""

import torch


def pool(hidden: torch.Tensor, starts: torch.Tensor, how: str) -> torch.Tensor:
    """(rows, H) float32 of `hidden` (T, H), whose row i is [starts[i], starts[i + 1]); `how` is cls, last, mean or max."""
    if how == "cls":
        return hidden[starts[:-1]].float()
    if how == "last":
        return hidden[starts[1:] - 1].float()
    return torch.segment_reduce(hidden[: int(starts[-1])].float(), how, lengths=starts.diff())


def normalized(vectors: torch.Tensor) -> torch.Tensor:
    """Each of length 1; one of length 0 stays as it is."""
    return torch.nn.functional.normalize(vectors, dim=-1)
