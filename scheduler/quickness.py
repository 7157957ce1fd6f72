"""Whether a model is so quick that handing a request to a thread costs more than running it."""

from collections import deque

QUICK = 60e-6  # seconds: about half of what a hop to another thread and back costs
_WINDOW = 16  # executions looked back on
_OUTLIERS = 1  # of them may be slower: the operating system takes the processor away now and then
_SLOW = 1e-3  # one execution that takes this long ends the trust
_PENANCE = 1000  # for so many executions


class Quickness:
    """Judges by the last executions of one batch size. Trust is lost at the first slow one and long in coming back."""

    def __init__(self) -> None:
        self._last: deque[bool] = deque(maxlen=_WINDOW)
        self._penance = 0

    @property
    def is_quick(self) -> bool:
        last = self._last
        return not self._penance and len(last) == _WINDOW and last.count(False) <= _OUTLIERS

    def note(self, seconds: float, *, trusted: bool) -> None:
        """An execution took `seconds`; `trusted` says that it ran on its caller's thread.

        Elsewhere the time includes waiting for the interpreter, so a long one does not speak against the model.
        """
        if trusted and seconds >= _SLOW:
            self._penance = _PENANCE
            self._last.clear()
            return
        if self._penance:
            self._penance -= 1
        self._last.append(seconds <= QUICK)
