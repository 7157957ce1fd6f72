"""Whether a model is so quick that handing a request to a thread costs more than running it."""

from collections import deque

QUICK = 100e-6  # seconds: what a hop to another thread and back costs, measured 70 to 130 µs on two cores
_WINDOW = 16  # executions looked back on
_OUTLIERS = 1  # of them may have taken more of the processor
_SEEN_QUICK = 4  # of them must have been quick by the clock on the wall as well
_SLOW = 0.02  # one execution on a caller's thread that takes this long ends the trust
_PENANCE = 1000  # for so many executions


class Quickness:
    """Judges by the last executions of one batch size.

    By processor time first: on a busy machine the wall clock also counts the wait for the interpreter and for a core,
    which says nothing of the model. But a model that waits uses no processor, so some must have been quick by
    the clock too.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[bool, bool]] = deque(maxlen=_WINDOW)
        self._penance = 0

    @property
    def is_quick(self) -> bool:
        last = self._last
        if self._penance or len(last) < _WINDOW:
            return False
        num_light = sum(light for light, _ in last)
        return num_light >= _WINDOW - _OUTLIERS and sum(short for _, short in last) >= _SEEN_QUICK

    def note(self, wall: float, processor: float, *, on_caller: bool) -> None:
        """An execution took `wall` seconds and `processor` seconds of its thread's processor time."""
        if on_caller and wall >= _SLOW:
            self._penance = _PENANCE
            self._last.clear()
            return
        if self._penance:
            self._penance -= 1
        self._last.append((processor <= QUICK, wall <= QUICK))
