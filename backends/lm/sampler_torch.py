"""Tokens from many rows of logits at once, for devices where a batch costs as much as a row.

The same distribution as `sampler_choice.RowSampler`; only where logits are equal may another of them be taken.
"""

from dataclasses import dataclass

import torch

from backends.lm.sampler_choice import NO_TOKEN

# The nucleus is looked for among so many best tokens first: enough for nearly every distribution a model gives
_FIRST_LOOK = 1024


@dataclass(frozen=True, slots=True)
class BatchParams:
    """(n,) float32 each, `top_k` (n,) int64, on the rows' device. `top_k` 0, `top_p` 1 and `min_p` 0 cut nothing."""

    uniforms: torch.Tensor  # (n,) float64
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def of(self, lines: torch.Tensor) -> "BatchParams":
        """Those of some of the rows."""
        return BatchParams(
            self.uniforms[lines], self.temperature[lines], self.top_k[lines], self.top_p[lines], self.min_p[lines]
        )


def greedy_batch(logits: torch.Tensor) -> torch.Tensor:
    """(n, vocab) -> (n,) best tokens."""
    best, tokens = logits.max(-1)
    return torch.where(torch.isfinite(best), tokens, NO_TOKEN)


def draw_batch(logits: torch.Tensor, params: BatchParams) -> torch.Tensor:
    """(n, vocab) -> (n,) tokens, each from its own row and uniform number alone."""
    best = logits.max(-1, keepdim=True).values
    weights = ((logits - best) / params.temperature[:, None]).exp()
    tokens = _invert(weights, params.uniforms)
    cut = (params.top_k > 0) | (params.top_p < 1.0) | (params.min_p > 0.0)
    lines = cut.nonzero()[:, 0]
    if len(lines):
        tokens[lines] = _draw_cut(logits[lines], weights[lines], params.of(lines))
    return torch.where(torch.isfinite(best[:, 0]), tokens, NO_TOKEN)


def _draw_cut(logits: torch.Tensor, weights: torch.Tensor, params: BatchParams) -> torch.Tensor:
    """Rows whose cut lies beyond the first look are done again over the whole vocabulary."""
    vocab_size = logits.shape[1]
    look = min(vocab_size, max(_FIRST_LOOK, int(params.top_k.max())))
    tokens, reached = _draw_among(logits, weights, params, look)
    lines = (~reached).nonzero()[:, 0]
    if look < vocab_size and len(lines):
        tokens[lines], _ = _draw_among(logits[lines], weights[lines], params.of(lines), vocab_size)
    return tokens


def _draw_among(
    logits: torch.Tensor, weights: torch.Tensor, params: BatchParams, look: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A draw from the `look` best tokens of each row, and whether no token beyond them could have been drawn."""
    _, ids = logits.topk(look, dim=-1)  # best first
    among = weights.gather(1, ids)
    place = torch.arange(look, device=logits.device)[None, :]
    top_k = torch.where(params.top_k > 0, params.top_k, logits.shape[1])[:, None]
    among = torch.where(place < top_k, among, 0.0)
    # top_p is a share of what top_k left, of the whole row where it left everything
    total = torch.where(params.top_k > 0, among.sum(-1), weights.sum(-1))[:, None]
    before = among.cumsum(-1, dtype=torch.float64) - among
    within = (before < params.top_p[:, None] * total) | (params.top_p[:, None] >= 1.0)
    kept = torch.where(within & (among >= params.min_p[:, None]), among, 0.0)
    chosen = _invert(kept, params.uniforms)
    return ids.gather(1, chosen[:, None])[:, 0], kept[:, -1] == 0.0


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """(n, m) weights and (n,) uniforms -> (n,) places."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    target = uniforms[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, target, right=True)[:, 0]
    # rounding may fall behind the last place that has weight
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return torch.minimum(places, last)
