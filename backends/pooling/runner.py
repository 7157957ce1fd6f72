"""What computes a batch: texts as tokens in, a vector a text out."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class Row(NamedTuple):
    """A text, or a pair of texts of which the second begins at `second` (the number of tokens where there is none)."""

    tokens: Sequence[int]
    second: int


class PoolingRunner(Protocol):
    """`max_model_len` is the most tokens a row may have; token ids are below `vocab_size`."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """(rows, dimension) float32, in the order of the rows. Blocks."""
        ...
