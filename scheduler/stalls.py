"""Whether work that waits for other work can ever go on: the deadlocks of nested calls, decided from a snapshot."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

Work = Any  # hashable


def is_stuck(work: Hashable, next_of: Callable[[Any], Sequence[Hashable] | None]) -> bool:
    """Whether `work` waits for nothing but work that waits, in the end for itself.

    `next_of` gives what each work waits for, the end of any of which is enough, and None for work that goes on by
    itself. All waiting is for any one, so this is: can no work that goes on be reached?
    """
    seen: set[Hashable] = set()
    todo = [work]
    while todo:
        each = todo.pop()
        if each in seen:
            continue
        seen.add(each)
        following = next_of(each)
        if following is None:
            return False
        todo += following
    return True
