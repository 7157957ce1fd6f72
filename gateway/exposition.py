"""Prometheus text for counters that keep Triton's names, which `prometheus_client` would end in `_total`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float
    suffix: str = ""  # of a histogram's parts: _bucket, _sum, _count


def render(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    """One family in the text format 0.0.4, labels in alphabetical order as Triton writes them."""
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{sample.suffix}{_labels(sample.labels)} {_number(sample.value)}" for sample in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()))
    return "{" + inner + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if not isfinite(value):
        return {inf: "+Inf", -inf: "-Inf"}.get(value, "NaN")
    return str(int(value)) if value == int(value) else repr(value)
