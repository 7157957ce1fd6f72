"""What load benchmarks say of themselves, and how they show and keep their numbers."""

import argparse
import json
import platform
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop

_UNTOLD = ("api_key", "json", "no_progress")


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, secrets and outputs aside."""
    return {name: value for name, value in vars(options).items() if name not in _UNTOLD}


def host() -> dict[str, str]:
    return {"machine": platform.machine(), "system": platform.platform(), "python": platform.python_version()}


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells under one another, to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def keep(report: Mapping[str, Any], path: Path | None) -> None:
    """Write every number to `path`, if there is one."""
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


def conclude(
    measuring: Coroutine[Any, Any, dict], table: Callable[[dict], str], options: argparse.Namespace
) -> dict | None:
    """The report of `measuring`, shown and kept; None where the endpoint did not answer, which is told on stderr."""
    try:
        report = uvloop.run(measuring)
    except (OSError, TimeoutError) as error:
        print(f"{options.url}: {error}", file=sys.stderr)
        return None
    print(table(report))
    keep(report, options.json)
    return report
