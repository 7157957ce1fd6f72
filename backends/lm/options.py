"""The settings of a language model, from a ModelConfig's `parameters`. No torch: the API process reads them too."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from backends.api.errors import Code, ServingError

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTION_BACKENDS = ("auto", "numba", "gather", "varlen", "reference")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class LmOptions:
    """Named as in vLLM where it has the setting. 0 (or "auto") leaves the choice to us.

    model                    where the weights are: a folder in Hugging Face's layout, a .gguf file, `package:NAME`
    dtype                    of activations and of weights that are not 4-bit. auto: what is fastest here
    device                   cpu or cuda. auto: cuda where there is one
    max_model_len            longest sequence, prompt and answer. 0: the model's, or what the KV cache holds
    max_num_seqs             most sequences in a step
    max_num_batched_tokens   most tokens in a step
    block_size               tokens in a KV cache block
    kv_cache_memory_bytes    KV cache size; 512M is 2**20 times 512, 512m is 10**6 times 512
    num_gpu_blocks_override  KV cache size in blocks instead
    gpu_memory_utilization   share of a CUDA device's memory to use when neither is given
    enable_prefix_caching    reuse blocks of equal prompt beginnings
    tensor_parallel_size     only 1
    deterministic            one kernel a layer for every batch size, so that neighbours never change a text
    num_threads              CPU threads of a step
    attention_backend        numba (CPU), varlen (CUDA), gather or reference (anywhere)
    seed                     of requests that bring none, drawn in order from it
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    kv_cache_memory_bytes: int = 0
    num_gpu_blocks_override: int = 0
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    deterministic: bool = False
    num_threads: int = 0
    attention_backend: str = "auto"
    seed: int = 0

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str], model_name: str) -> Self:
        """Takes the parameters named above; others belong to other parts and are left alone.

        Raises ServingError(INVALID), for tensor_parallel_size UNSUPPORTED, with field, range and value.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in parameters:
                values[field.name] = _parse(field.name, parameters[field.name], model_name)
        if "model" not in values:
            raise _error(model_name, "model", "a folder, a .gguf file or package:NAME", "nothing")
        options = cls(**values)
        if options.tensor_parallel_size != 1:
            got = parameters["tensor_parallel_size"]
            raise _error(model_name, "tensor_parallel_size", "1: a model runs on one device", got, Code.UNSUPPORTED)
        if options.kv_cache_memory_bytes and options.num_gpu_blocks_override:
            raise _error(model_name, "num_gpu_blocks_override", "to be alone, or kv_cache_memory_bytes", "both")
        return options


class _RejectedError(Exception):
    """Carries what was expected."""


def _parse(name: str, text: str, model_name: str) -> Any:
    try:
        return _PARSERS[name](text.strip())
    except _RejectedError as rejected:
        raise _error(model_name, name, str(rejected), repr(text)) from None


def _error(model_name: str, name: str, expected: str, got: str, code: Code = Code.INVALID) -> ServingError:
    return ServingError(code, f"model '{model_name}': parameter '{name}': expected {expected}, got {got}", param=name)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}", text) or not low <= int(text) <= high:
            raise _RejectedError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise _RejectedError(f"one of {', '.join(choices)}")
        return text

    return parse


def _flag(text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise _RejectedError("true or false")
    return known[text.lower()]


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    size = int(float(match[1]) * _SCALE[match[2]]) if match else 0
    if not 1 << 16 <= size <= 1 << 50:
        raise _RejectedError("a number of bytes of at least 65536, such as 1073741824 or 1G")
    return size


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise _RejectedError("a number above 0, up to 1")
    return value


def _location(text: str) -> str:
    if not text:
        raise _RejectedError("a folder, a .gguf file or package:NAME")
    return text


_PARSERS: dict[str, Callable[[str], Any]] = {
    "model": _location,
    "dtype": _one_of(*DTYPES),
    "device": _one_of("auto", "cpu", "cuda"),
    "max_model_len": _whole(0, 1 << 24),
    "max_num_seqs": _whole(1, 4096),
    "max_num_batched_tokens": _whole(1, 1 << 20),
    "block_size": _whole(1, 1024),
    "kv_cache_memory_bytes": _size,
    "num_gpu_blocks_override": _whole(0, 1 << 30),
    "gpu_memory_utilization": _share,
    "enable_prefix_caching": _flag,
    "tensor_parallel_size": _whole(1, 1024),
    "deterministic": _flag,
    "num_threads": _whole(0, 1024),
    "attention_backend": _one_of(*ATTENTION_BACKENDS),
    "seed": _whole(0, (1 << 63) - 1),
}
