"""What the repository is told at start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryOptions:
    """`load_models` counts in mode explicit alone, ("*",) is all. `num_gpus`: 0 makes KIND_AUTO the CPU."""

    paths: tuple[Path, ...]
    mode: Literal["none", "poll", "explicit"] = "none"
    load_models: tuple[str, ...] = ()
    poll_seconds: float = 15.0
    config_name: str = ""
    load_threads: int = 4
    load_retries: int = 0
    namespacing: bool = False
    exit_on_error: bool = True
    strict_readiness: bool = True
    auto_complete: bool = True
    num_gpus: int = 0
