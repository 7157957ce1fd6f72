"""A tape whose arguments are bound by name before each run."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.lm.cpu.team import Tape


@dataclass(frozen=True, slots=True)
class Bound:
    """An argument given later by `bind`: the value called `name`, plus `offset`."""

    name: str
    offset: int = 0


Arguments = dict[int, "int | Bound"]


class TapeBuilder:
    """Collects tasks whose arguments are numbers, or names of values that are bound later."""

    def __init__(self) -> None:
        self._tasks: list[Any] = []
        self._arguments: list[np.ndarray] = []
        self._places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)  # name -> (task, index, offset)

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Any, arguments: Arguments, num_args: int, like: "np.ndarray | None" = None) -> None:
        """A task with `arguments`; those not given are 0, or as in `like`."""
        row = np.zeros(num_args, dtype=np.int64) if like is None else like.copy()
        for index, value in arguments.items():
            if isinstance(value, Bound):
                self._places[value.name].append((len(self._tasks), index, value.offset))
            else:
                row[index] = value
        self._tasks.append(task)
        self._arguments.append(row)

    def finish(self) -> "BoundTape":
        """The tape. All its arguments lie in one array, so that binding a name is one indexed assignment."""
        starts = np.cumsum([0, *(len(row) for row in self._arguments)])
        memory = np.concatenate(self._arguments)
        rows = [memory[start : start + len(row)] for start, row in zip(starts, self._arguments, strict=False)]
        places = {
            name: (
                np.array([starts[task] + index for task, index, _ in found]),
                np.array([offset for _, _, offset in found]),
            )
            for name, found in self._places.items()
        }
        return BoundTape(Tape(list(zip(self._tasks, rows, strict=True))), memory, places)


class BoundTape:
    """`tape` may run once every name is bound."""

    def __init__(self, tape: Tape, memory: np.ndarray, places: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        self.tape = tape
        self._memory = memory
        self._places = places

    def bind(self, name: str, value: int) -> None:
        indices, offsets = self._places[name]
        self._memory[indices] = offsets + value
