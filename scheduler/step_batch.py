"""From the slices of a plan to the arrays a runner takes."""

import numpy as np

from backends.lm.step import StepBatch
from scheduler.token_sequence import Slice


def step_batch(slices: list[Slice], table: np.ndarray, block_size: int) -> StepBatch:
    """The arrays of one step. `table` is the block table of all rows, (max rows, max blocks) int32."""
    rows, tokens, starts, contexts, samples, num_drafts = [], [], [0], [], [], []
    for part in slices:
        sequence, count = part.sequence, part.count
        computed = sequence.computed
        rows.append(sequence.row)
        if count == 1:
            tokens.append(sequence.tokens[computed])
        else:
            tokens += part.tokens()
        starts.append(len(tokens))
        contexts.append(computed + count)
        samples.append(computed + count >= len(sequence.tokens))
        num_drafts.append(part.num_drafts)
    row_array = np.array(rows, dtype=np.int32)
    width = -(-max(contexts) // block_size)
    return StepBatch(
        rows=row_array,
        tokens=np.array(tokens, dtype=np.int32),
        query_starts=np.array(starts, dtype=np.int32),
        context_lens=np.array(contexts, dtype=np.int32),
        block_table=table[row_array, :width],
        samples=np.array(samples, dtype=np.bool_),
        num_drafts=np.array(num_drafts, dtype=np.int32),
    )
