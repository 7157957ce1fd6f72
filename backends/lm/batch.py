"""From a step's arrays to what every layer needs. Pure numpy, vectorised over tokens."""

import numpy as np

from backends.lm.ops import AttentionBatch
from backends.lm.step import StepBatch


def attention_batch(step: StepBatch, block_size: int) -> AttentionBatch:
    """Positions and slots of a step's T tokens: slot = table[position // block_size] * block_size + position % block_size."""
    counts = np.diff(step.query_starts)
    sequence = np.repeat(np.arange(len(counts)), counts)
    firsts = step.context_lens - step.query_starts[1:]  # a token's position is its place in the batch plus this
    positions = (np.arange(len(step.tokens)) + firsts[sequence]).astype(np.int32)
    blocks = step.block_table[sequence, positions // block_size].astype(np.int64)
    return AttentionBatch(
        query_starts=step.query_starts,
        context_lens=step.context_lens,
        block_table=step.block_table,
        positions=positions,
        slots=blocks * block_size + positions % block_size,
        max_query=int(counts.max()),
        max_context=int(step.context_lens.max()),
    )
