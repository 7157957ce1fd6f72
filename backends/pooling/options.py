"""The settings of a pooling model, from a ModelConfig's `parameters`. No torch: the API process reads them too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from backends.lm.parameters import Parser, flag, one_of, read, text, whole

TASKS = ("auto", "embed", "score")
POOLINGS = ("cls", "mean", "max", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingOptions:
    """What is left out is read from the model's files, see `description.py`.

    model                 a folder in Hugging Face's layout, or `package:NAME`
    task                  embed: a vector a text. score: a number a pair of texts
    pooling               how a text's vector is made of its tokens' vectors
    normalize             whether vectors have length 1
    max_model_len         longest text, in tokens; 0: the model's
    matryoshka_dimensions lengths that vectors may be cut to, "any" for every length
    dtype                 of weights and activations; auto: float32 on a CPU, bfloat16 on CUDA
    device                auto: cuda where there is one
    num_threads           CPU threads of a step; 0: as many as for a language model
    """

    model: str = "."
    task: str = "auto"
    pooling: str | None = None
    normalize: bool | None = None
    max_model_len: int = 0
    matryoshka_dimensions: str = ""
    dtype: str = "auto"
    device: str = "auto"
    num_threads: int = 0

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str], model_name: str) -> Self:
        """Takes the parameters named above; others are left alone. Raises ServingError(INVALID)."""
        return cls(**read(_PARSERS, parameters, model_name))


_PARSERS: dict[str, Parser] = {
    "model": text("a folder or package:NAME"),
    "task": one_of(*TASKS),
    "pooling": one_of(*POOLINGS),
    "normalize": flag,
    "max_model_len": whole(0, 1 << 24),
    "matryoshka_dimensions": text("lengths, as in 64,128, or any"),
    "dtype": one_of("auto", "float32", "bfloat16", "float16"),
    "device": one_of("auto", "cpu", "cuda"),
    "num_threads": whole(0, 1024),
}
PARAMETERS = frozenset(_PARSERS)
