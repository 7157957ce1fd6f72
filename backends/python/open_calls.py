"""The calls to other models that an instance's process has open."""

from typing import TYPE_CHECKING

from backends.api.request import InferenceRequest

if TYPE_CHECKING:
    from backends.python.calls import NestedCall


class OpenCalls:
    """Calls by number, and by the requests they were made for that have not ended. Used by one thread."""

    def __init__(self) -> None:
        self._calls: dict[int, NestedCall] = {}
        self._made_for: dict[InferenceRequest, set[int]] = {}

    def add(self, number: int, call: "NestedCall") -> None:
        """A call that is made after all its parents have ended stays open whatever becomes of them."""
        self._calls[number] = call
        for parent in call.parents:
            if not parent.stream.ended:
                self._made_for.setdefault(parent, set()).add(number)

    def get(self, number: int) -> "NestedCall | None":
        return self._calls.get(number)

    def remove(self, number: int) -> None:
        call = self._calls.pop(number, None)
        for parent in () if call is None else call.parents:
            numbers = self._made_for.get(parent)
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._made_for[parent]

    def orphans(self, ended: InferenceRequest) -> list["NestedCall"]:
        """The open calls of which `ended` was the last parent."""
        calls = [self._calls[number] for number in self._made_for.pop(ended, ())]
        return [call for call in calls if not any(parent in self._made_for for parent in call.parents)]

    def clear(self) -> list["NestedCall"]:
        """Forget all; the calls."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._made_for.clear()
        return calls
