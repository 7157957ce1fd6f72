"""The main of an engine child: `python -m scheduler.engine_process FD PARENT_PID SPEC`.

Speaks frames over the stream socket FD, one a step each way. It blocks on the socket while there is nothing to do,
and ends when told to, when its parent ends, or when its steps fail again and again.
"""

import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys

import msgspec

from backends.api.errors import Code, ServingError
from scheduler.calibrate import calibrate
from scheduler.engine import Engine
from scheduler.engine_errors import EngineBrokenError
from scheduler.engine_spec import EngineSpec
from scheduler.frames import (
    Commands,
    EngineFrame,
    Failure,
    FrameBuffer,
    Progress,
    commands_decoder,
    encode,
)
from scheduler.pooling_engine import PoolingEngine, measured_pace
from scheduler.stepped_engine import SteppedEngine

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_CHUNK = 1 << 18


class Link:
    """The child's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = FrameBuffer()

    def send(self, frame: EngineFrame) -> None:
        """Blocks while the parent does not read. Raises OSError when it is gone."""
        self._socket.sendall(encode(frame))

    def receive(self, *, wait: bool) -> Commands:
        """All that has come, as one; waits for something if `wait`. Asks to close when the parent is gone."""
        commands = Commands([], [])
        while True:
            flags = 0 if wait and not commands else socket.MSG_DONTWAIT
            try:
                data = self._socket.recv(_CHUNK, flags)
            except BlockingIOError:
                return commands
            if not data:
                commands.close = True
                return commands
            for body in self._buffer.feed(data):
                _merge(commands, commands_decoder.decode(body))


def _merge(commands: Commands, more: Commands) -> None:
    commands.add += more.add
    commands.abort += more.abort
    commands.clear_cache |= more.clear_cache
    commands.close |= more.close


def serve(engine: SteppedEngine, link: Link) -> None:
    """Step as long as there is work, and listen before each step.

    Commands are followed by a step even when they leave no work: its frame tells of the engine that an abort emptied.
    """
    while not engine.apply(link.receive(wait=not engine.has_work)):
        link.send(engine.step())


def run(spec: EngineSpec, link: Link) -> int:
    """Load, say so, serve. The exit status."""
    try:
        engine = _load(spec, link)
    except ServingError as error:
        link.send(Failure.of(error))
        return 1
    except Exception as error:
        log.exception("loading failed")
        message = f"model '{spec.model_name}': loading failed: {type(error).__name__}: {error}"
        link.send(Failure.of(ServingError(Code.INTERNAL, message)))
        return 1
    gc.collect()
    gc.freeze()  # the model lives as long as we do: the collector need not look at it again
    link.send(engine.limits)
    try:
        serve(engine, link)
    except EngineBrokenError as error:
        log.error("%s", error)
        return 2
    finally:
        engine.close()
    return 0


def _load(spec: EngineSpec, link: Link) -> SteppedEngine:
    if spec.pools:
        pooler = spec.load_pooling_runner()
        return PoolingEngine(pooler, spec.options, seconds_per_token=measured_pace(pooler))
    runner = spec.load_runner(lambda what, done, total: link.send(Progress(what, done, total)))
    link.send(Progress("warm-up"))
    times = calibrate(runner, spec.options)
    return Engine(runner, spec.options, times=times, records_events=spec.records_events)


def _live_and_die_with_parent(parent: int) -> None:
    """Signals of the process group are the parent's to handle; its end is ours, also in the middle of a step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent ended before this process began")


def main() -> None:
    descriptor, parent, spec = sys.argv[1:]
    _live_and_die_with_parent(int(parent))
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            status = run(msgspec.json.decode(spec, type=EngineSpec), Link(connection))
        except (BrokenPipeError, ConnectionResetError):
            status = 0  # the parent is gone
    sys.exit(status)


if __name__ == "__main__":
    main()
