"""The one chunk of a prompt that is on its way through the model's layers, a few a step."""

from collections.abc import Callable

from backends.lm.step import LayeredPrefill, StepBatch, StepOutput
from scheduler.step_time import StepLoad, chunk_load
from scheduler.token_sequence import Slice, TokenSequence


class LayeredChunk:
    """Owns the chunk from the step that begins it to the one that takes it through the last layer, or to `drop`."""

    def __init__(self, layered: LayeredPrefill | None, clock: Callable[[], float]) -> None:
        self._layered = layered
        self._clock = clock
        self.part: Slice | None = None  # what is under way
        self.load = StepLoad()  # of the chunk under way, or the last one
        self.seconds = 0.0  # spent on it

    @property
    def num_layers(self) -> int:
        """Of the model; 1 where it can only be run as a whole."""
        return 1 if self._layered is None else self._layered.num_layers

    def advance(self, part: Slice, layers: int, batch_of: Callable[[list[Slice]], StepBatch]) -> StepOutput | None:
        """Take `part` through up to so many `layers` more, from the first if it is new. Its outcome after the last."""
        assert self._layered is not None, "a chunk for the layers of a model that has none"
        assert self.part is None or self.part.sequence is part.sequence, "one chunk at a time"
        start = self._clock()
        if self.part is None:
            self.part = part
            self.load = chunk_load(part.count, part.sequence.computed + part.count)
            self.seconds = 0.0
            self._layered.begin(batch_of([part]))
        output = self._layered.advance(layers)
        self.seconds += self._clock() - start
        if output is not None:
            self.part = None
        return output

    def drop(self, sequence: TokenSequence) -> None:
        """Give up the chunk if it is this sequence's."""
        if self.part is not None and self.part.sequence is sequence:
            self.part = None
            if self._layered is not None:
                self._layered.drop()
