"""Any other decoder-only model, by transformers' own modelling with our paged attention in it.

transformers hands an attention function registered under a name of ours the queries, keys and values of each layer;
it builds no masks for a name it has none for. What the function needs beside travels in a context variable.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from backends.api.errors import Code, ServingError
from backends.lm.hf_loading import GivenHidden, fix_frequencies, load_hf
from backends.lm.ops import Attention, AttentionBatch, AttentionSpec, Ops

_NAME = "tidegate_paged"
_LAYERS_WE_KNOW = {"full_attention", "sliding_attention", "attention"}
_PROBE_TOKENS = 24


class _Layers(Protocol):
    """Answers a forward's attention calls, in the order of the layers."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
        """q (1, heads, T, D), k and v (1, kv heads, T, D) -> (1, T, heads, D)."""
        ...


_LAYERS: ContextVar[_Layers] = ContextVar("tidegate_layers")


def attend_paged(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **how: Any
) -> tuple[torch.Tensor, None]:
    """The function registered with transformers, in its signature."""
    return _LAYERS.get().attend(query, key, value, how), None


class _Recorder:
    """Learns each layer's shape in a first forward. What it returns has the right shape and no meaning."""

    def __init__(self) -> None:
        self.specs: list[AttentionSpec] = []

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
        if q.shape[-1] != v.shape[-1]:
            raise _NotPagedError(f"values of {v.shape[-1]} beside keys of {q.shape[-1]} a head")
        if how.get("s_aux") is not None:
            raise _NotPagedError("attention sinks")
        scale = how.get("scaling")
        spec = AttentionSpec(
            num_heads=q.shape[1],
            num_kv_heads=k.shape[1],
            head_dim=q.shape[3],
            scale=q.shape[3] ** -0.5 if scale is None else float(scale),
            window=how.get("sliding_window") or 0,
            softcap=how.get("softcap") or 0.0,
        )
        self.specs.append(spec)
        return torch.zeros_like(q).transpose(1, 2)


class _Pools:
    """One step's attention over each layer's pool."""

    def __init__(self, attentions: Sequence[Attention], dtype: torch.dtype, batch: AttentionBatch) -> None:
        self._rest = iter(attentions)
        self._dtype = dtype
        self._batch = batch

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
        queries, keys, values = (x[0].transpose(0, 1).to(self._dtype).contiguous() for x in (q, k, v))
        out = next(self._rest)(queries, keys, values, self._batch)
        return out.view(queries.shape).to(q.dtype)[None]


class _NotPagedError(Exception):
    """A model does what the paged pool cannot give it."""


class HfModel:
    """A `PagedModel` over transformers' modelling. Made in two parts, since the pool's size depends on `specs`."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, max_length: int) -> None:
        """Loads the weights. Raises ServingError: UNSUPPORTED for a model that cannot be paged, INVALID for bad files."""
        self._folder = folder
        model = load_hf(folder, dtype, _NAME, attend_paged).to(device)
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self._device = device
        self._body: nn.Module = model.base_model
        if self._body is model:
            raise self._unsupported("it has no body apart from its head")
        self._check_layers(model.config.get_text_config())
        fix_frequencies(self._body, max_length, device)
        self._expected = self._eager_logits(model)
        setattr(model, model.base_model_prefix, GivenHidden())
        self._head = model
        self.specs = self._record()
        self._check_windows(model.config.get_text_config(), max_length)

    def allocate(self, ops: Ops, num_blocks: int, block_size: int) -> None:
        """Make the pools, and check once that paged logits are those of transformers' own attention."""
        self._ops = ops
        self._attentions = [ops.attention(spec, num_blocks, block_size) for spec in self.specs]
        self._compare(num_blocks, block_size)

    def forward(self, tokens: np.ndarray, batch: AttentionBatch) -> torch.Tensor:
        return self._run(tokens, batch.positions, _Pools(self._attentions, self._ops.dtype, batch))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits.float()

    def close(self) -> None:
        self._ops.close()

    def _run(self, tokens: np.ndarray, positions: np.ndarray, layers: _Layers) -> torch.Tensor:
        ids, at = (torch.from_numpy(x).long()[None].to(self._device) for x in (tokens, positions))
        with _answered_by(layers):
            hidden: torch.Tensor = self._body(input_ids=ids, position_ids=at, use_cache=False).last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def _record(self) -> list[AttentionSpec]:
        recorder = _Recorder()
        try:
            self._run(np.zeros(2, np.int32), np.arange(2, dtype=np.int32), recorder)
        except _NotPagedError as cause:
            raise self._unsupported(str(cause)) from None
        except Exception as cause:
            raise self._unsupported(f"{type(cause).__name__}: {cause}") from cause
        config = self._head.config.get_text_config()
        if len(recorder.specs) != config.num_hidden_layers:
            raise self._unsupported(f"{len(recorder.specs)} of its {config.num_hidden_layers} layers call attention")
        return recorder.specs

    @torch.inference_mode()
    def _eager_logits(self, model: Any) -> torch.Tensor:
        """(tokens, vocab) of the probe by transformers' own attention."""
        model.set_attn_implementation("eager")
        ids = torch.from_numpy(self._probe()).long()[None].to(self._device)
        try:
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        except Exception as cause:
            raise self._unsupported(f"{type(cause).__name__}: {cause}") from cause
        model.set_attn_implementation(_NAME)
        logits: torch.Tensor = output.logits[0].float()
        return logits

    @torch.inference_mode()
    def _compare(self, num_blocks: int, block_size: int) -> None:
        """Catches what no list of architectures would: positions, biases or masks that paging does not give a model."""
        probe = self._probe()[: num_blocks * block_size]
        cut = len(probe) * 2 // 3
        pieces = [self._paged_logits(probe[a:b], a, block_size) for a, b in ((0, cut), (cut, len(probe)))]
        got, want = torch.cat(pieces), self._expected[: len(probe)]
        limit = 1e-3 if self._head.dtype == torch.float32 and self._ops.kv_dtype == torch.float32 else 0.1
        difference, size = float((got - want).abs().max()), float(want.abs().max())
        if not difference <= limit * max(size, 1.0):
            raise self._unsupported(f"its paged logits differ from transformers' own by {difference:.3g} of {size:.3g}")

    def _paged_logits(self, tokens: np.ndarray, start: int, block_size: int) -> torch.Tensor:
        end = start + len(tokens)
        positions = np.arange(start, end, dtype=np.int32)
        batch = AttentionBatch(
            query_starts=np.array([0, len(tokens)], np.int32),
            context_lens=np.array([end], np.int32),
            block_table=np.arange(-(-end // block_size), dtype=np.int32)[None],
            positions=positions,
            slots=positions.astype(np.int64),
            max_query=len(tokens),
            max_context=end,
        )
        return self.logits(self.forward(tokens, batch))

    def _probe(self) -> np.ndarray:
        return np.random.default_rng(0).integers(0, self.vocab_size, _PROBE_TOKENS).astype(np.int32)

    def _check_layers(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or ()) - _LAYERS_WE_KNOW
        if config.is_encoder_decoder or kinds:
            raise self._unsupported(f"layers of kind {', '.join(sorted(kinds)) or 'encoder'}")

    def _check_windows(self, config: Any, max_length: int) -> None:
        """A window that the model leaves to its mask would be lost in silence."""
        window = getattr(config, "sliding_window", None) or 0
        on = getattr(config, "use_sliding_window", True)
        if on and 0 < window < max_length and not any(spec.window for spec in self.specs):
            raise self._unsupported(f"a sliding window of {window} in its mask; max_model_len up to it would do")

    def _unsupported(self, what: str) -> ServingError:
        return ServingError(
            Code.UNSUPPORTED, f"{self._folder}: expected a decoder whose attention can use a paged cache, got {what}"
        )


@contextmanager
def _answered_by(layers: _Layers) -> Any:
    token = _LAYERS.set(layers)
    try:
        yield
    finally:
        _LAYERS.reset(token)
