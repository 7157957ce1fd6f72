"""Tidegate beside a real Triton, or beside another checkout of itself, on the same identity model in one run.

python -m bench.peers                                  Tidegate and Triton 2.51 from PyPI
python -m bench.peers --no-triton --before CHECKOUT    what a change does: two checkouts, in turns
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.infer import add_load_arguments, finish, measure
from bench.infer_requests import Target
from bench.peers.servers import MODELS, PeerUnavailableError, tidegate, triton
from tests.oracle.triton_server import TritonUnavailableError

_ROOT = Path(__file__).parents[2]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--before", type=Path, help="another checkout of Tidegate")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add_load_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    options.shape = options.shape or ["x=1,16"]
    try:
        with ExitStack() as stack:
            targets = start(options, stack)
            report = uvloop.run(measure(targets, options))
    except (OSError, PeerUnavailableError, TritonUnavailableError) as error:
        print(error, file=sys.stderr)
        return 1
    return finish(report, options)


def start(options: argparse.Namespace, stack: ExitStack) -> list[Target]:
    """The models of every server; ratios are to the first."""

    def folder() -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory()))

    servers = {}
    if not options.no_triton:
        servers["triton"] = stack.enter_context(triton(folder()))
    if options.before:
        servers["before"] = stack.enter_context(tidegate(folder(), options.before))
    servers["tidegate"] = stack.enter_context(tidegate(folder(), _ROOT))
    return [
        Target(f"{name} {model}", model, http, grpc)
        for name, (http, grpc) in servers.items()
        for model in options.models
    ]


if __name__ == "__main__":
    sys.exit(main())
