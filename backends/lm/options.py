"""The settings of a language model, from a ModelConfig's `parameters`. No torch: the API process reads them too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from backends.api.errors import Code
from backends.lm.parameters import Parser, flag, one_of, read, rejected, share, size, text, whole

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTION_BACKENDS = ("auto", "numba", "gather", "varlen", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class LmOptions:
    """Named as in vLLM where it has the setting. 0 (or "auto") leaves the choice to us.

    model                    where the weights are: a folder in Hugging Face's layout, a .gguf file, `package:NAME`
    dtype                    of activations and of weights that are not 4-bit. auto: what is fastest here
    device                   cpu or cuda. auto: cuda where there is one
    max_model_len            longest sequence, prompt and answer. 0: the model's, or what the KV cache holds
    max_num_seqs             most sequences in a step; no parameter of ours: the engine reads it and says how many
    block_size               tokens in a KV cache block
    kv_cache_memory_bytes    KV cache size; 512M is 2**20 times 512, 512m is 10**6 times 512
    num_gpu_blocks_override  KV cache size in blocks instead
    gpu_memory_utilization   share of a CUDA device's memory to use when neither is given
    tensor_parallel_size     only 1
    deterministic            one kernel a layer for every batch size, so that neighbours never change a text
    num_threads              CPU threads of a step
    attention_backend        numba (CPU), varlen (CUDA), gather or reference (anywhere)
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 64
    block_size: int = 16
    kv_cache_memory_bytes: int = 0
    num_gpu_blocks_override: int = 0
    gpu_memory_utilization: float = 0.9
    tensor_parallel_size: int = 1
    deterministic: bool = False
    num_threads: int = 0
    attention_backend: str = "auto"

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str], model_name: str) -> Self:
        """Takes the parameters named above; others belong to other parts and are left alone.

        Raises ServingError(INVALID), for tensor_parallel_size UNSUPPORTED, with field, range and value.
        """
        values = read(_PARSERS, parameters, model_name)
        if "model" not in values:
            raise rejected(model_name, "model", LOCATION, "nothing")
        options = cls(**values)
        if options.tensor_parallel_size != 1:
            got = parameters["tensor_parallel_size"]
            raise rejected(model_name, "tensor_parallel_size", "1: a model runs on one device", got, Code.UNSUPPORTED)
        if options.kv_cache_memory_bytes and options.num_gpu_blocks_override:
            raise rejected(model_name, "num_gpu_blocks_override", "to be alone, or kv_cache_memory_bytes", "both")
        return options


LOCATION = "a folder, a .gguf file or package:NAME"
_PARSERS: dict[str, Parser] = {
    "model": text(LOCATION),
    "dtype": one_of(*DTYPES),
    "device": one_of("auto", "cpu", "cuda"),
    "max_model_len": whole(0, 1 << 24),
    "block_size": whole(1, 1024),
    "kv_cache_memory_bytes": size,
    "num_gpu_blocks_override": whole(0, 1 << 30),
    "gpu_memory_utilization": share,
    "tensor_parallel_size": whole(1, 1024),
    "deterministic": flag,
    "num_threads": whole(0, 1024),
    "attention_backend": one_of(*ATTENTION_BACKENDS),
}
PARAMETERS = frozenset(_PARSERS)
"""The names of a config's parameters that this module owns."""
