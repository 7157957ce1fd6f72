"""A fault in what a configuration says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` is the field's place in the configuration (`input[0].dims`), `message` is fit for the caller."""

    path: str
    message: str
