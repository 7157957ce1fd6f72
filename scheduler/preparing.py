"""Sequences that cannot wait for their turn yet: their grammar is still being compiled."""

from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any

from scheduler.token_sequence import TokenSequence

_MOMENT = 0.01  # seconds: how long the engine may be deaf to new commands


class Preparing:
    """Owns them from `add` until they are taken or discarded. They hold no row and no block and stand in nobody's way."""

    def __init__(self) -> None:
        self._sequences: dict[int, tuple[TokenSequence, Future[Any]]] = {}

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(self._sequences)

    def add(self, sequence: TokenSequence, prepared: "Future[Any]") -> None:
        self._sequences[sequence.number] = (sequence, prepared)

    def discard(self, sequence: TokenSequence) -> bool:
        """Whether it was here."""
        return self._sequences.pop(sequence.number, None) is not None

    def take(self, *, wait: bool) -> list[tuple[TokenSequence, Exception | None]]:
        """Those that are ready, in the order they came, each with why it cannot go on; with `wait`, after at most a moment."""
        if not self._sequences:
            return []
        if wait:
            _first_of([prepared for _, prepared in self._sequences.values()])
        ready = [number for number, (_, prepared) in self._sequences.items() if prepared.done()]
        return [_outcome(*self._sequences.pop(number)) for number in ready]


def _first_of(futures: "list[Future[Any]]") -> None:
    wait(futures, _MOMENT, FIRST_COMPLETED)


def _outcome(sequence: TokenSequence, prepared: "Future[Any]") -> tuple[TokenSequence, Exception | None]:
    if prepared.cancelled():
        return sequence, CancelledError("the engine is closing")
    error = prepared.exception()
    return sequence, error if error is None or isinstance(error, Exception) else RuntimeError(str(error))
