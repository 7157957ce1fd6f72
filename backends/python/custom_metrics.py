"""Metrics that custom models define: families by name, values by labels."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.api.errors import Code, ServingError

OF_SERVER = ("nv_", "vllm:", "tidegate_")
"""How the names of the server's own families begin."""


@dataclass(slots=True)
class Series:
    """One metric. A histogram counts in `counts` what lies up to each bound of `buckets`, and above in the last."""

    labels: Mapping[str, str]
    buckets: tuple[float, ...] = ()
    value: float = 0.0  # of a histogram: the sum
    counts: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Family:
    name: str
    description: str
    kind: str
    series: dict[frozenset[tuple[str, str]], Series] = field(default_factory=dict)


class CustomMetrics:
    """Those of one model version; its instances share them and a restart of one keeps them. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, Family] = {}
        self._series: list[tuple[Family, Series]] = []
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}

    def add_family(self, name: str, description: str, kind: str) -> None:
        """Raises ServingError(INVALID) for a name that cannot be, ALREADY_EXISTS for the server's or one of another kind."""
        if name.startswith(OF_SERVER):
            raise ServingError(
                Code.ALREADY_EXISTS,
                f"metric family '{name}': names that begin with {', '.join(OF_SERVER)} are the server's",
            )
        if (
            not name
            or not name.replace("_", "a").replace(":", "a").isalnum()
            or name[0].isdigit()
            or not name.isascii()
        ):
            raise ServingError(Code.INVALID, f"metric family '{name}': not a name that Prometheus allows")
        with self._lock:
            known = self._families.setdefault(name, Family(name, description, kind))
        if known.kind != kind:
            raise ServingError(Code.ALREADY_EXISTS, f"metric family '{name}' exists already, as a {known.kind}")

    def add(self, family: str, labels: Mapping[str, str], buckets: Sequence[float]) -> int:
        """The number of a metric, made if it is new."""
        key = frozenset(labels.items())
        with self._lock:
            number = self._numbers.get((family, key))
            if number is None:
                owner = self._families[family]
                bounds = tuple(sorted(buckets))
                series = owner.series[key] = Series(dict(labels), bounds, counts=[0] * (len(bounds) + 1))
                number = self._numbers[family, key] = len(self._series)
                self._series.append((owner, series))
            return number

    def measure(self, number: int, operation: str, value: float) -> float:
        """Apply `operation`; the value after it. Raises ServingError(INVALID) for a number nobody was given."""
        with self._lock:
            if not 0 <= number < len(self._series):
                raise ServingError(Code.INVALID, f"metric {number} does not exist")
            _, series = self._series[number]
            if operation == "increment":
                series.value += value
            elif operation == "set":
                series.value = value
            elif operation == "observe":
                series.value += value
                series.counts[bisect_left(series.buckets, value)] += 1
            return series.value

    def snapshot(self) -> list[Family]:
        """A copy that stays as it is."""
        with self._lock:
            return [
                Family(
                    family.name,
                    family.description,
                    family.kind,
                    {
                        key: Series(series.labels, series.buckets, series.value, list(series.counts))
                        for key, series in family.series.items()
                    },
                )
                for family in self._families.values()
            ]
