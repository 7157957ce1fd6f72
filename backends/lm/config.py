"""What a decoder looks like, whatever file told it. No torch: the API process reads it too."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding over `dim` values a head. `kind`: default, linear, dynamic, llama3, yarn or longrope.

    Names of the other fields are those of Hugging Face's `rope_parameters`; the formulas are in `rope.py`.
    `max_length` is the model's `max_position_embeddings`. `divisors`, from a GGUF's `rope_freqs.weight`, divide
    each frequency.
    """

    dim: int
    theta: float
    kind: str = "default"
    max_length: int = 0
    factor: float = 1.0
    original_length: int = 0
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LmConfig:
    """A decoder of the families in `model.py`.

    `ropes` and `windows` have an entry a layer; window 0 sees all. `norm_offset` is what the file leaves out of its
    norm weights (1 for Gemma in Hugging Face's layout). `sandwich_norms`: norms after attention and feed-forward
    too. Soft caps of 0 are none. `max_positions` is the longest sequence the model was made for, scaling included.
    """

    architecture: str
    num_layers: int
    hidden: int
    ffn: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    ropes: tuple[Rope, ...]
    windows: tuple[int, ...]
    attention_scale: float
    activation: str = "silu"
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    qk_norm: bool = False
    sandwich_norms: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
