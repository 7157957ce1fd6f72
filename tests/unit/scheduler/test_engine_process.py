"""The loop of an engine child, over a socket pair in this process."""

import socket
import threading

import pytest

from backends.api.request import SamplingParams
from scheduler.engine import Engine
from scheduler.engine_options import EngineOptions
from scheduler.engine_process import Link, serve
from scheduler.engine_spec import EngineSpec, child_environment
from scheduler.frames import Commands, FrameBuffer, NewRequest, StepFrame, encode, engine_decoder
from tests.fakes.token_runner import FakeRunner


class RecordingLink(Link):
    """Remembers whether it was asked to wait."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.waits: list[bool] = []

    def receive(self, *, wait: bool) -> Commands:
        self.waits.append(wait)
        return super().receive(wait=wait)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with ours, theirs:
        yield ours, theirs


def add(number: int, max_tokens: int = 3) -> Commands:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return Commands([NewRequest(number, [1, 2], sampling, 0, 0.0, None, "")])


class Client:
    """The parent's end: sends commands, reads frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = FrameBuffer()

    def run(self, commands: Commands) -> list[StepFrame]:
        """The frames up to the end of the one request in `commands`."""
        self._connection.sendall(encode(commands))
        frames: list[StepFrame] = []
        while not frames or frames[-1].events[-1][1].finish is None:
            frames += [engine_decoder.decode(body) for body in self._buffer.feed(self._connection.recv(1 << 16))]
        return frames


def test_one_frame_a_step_and_it_waits_only_when_there_is_nothing_to_do(pair):
    ours, theirs = pair
    link, client = RecordingLink(theirs), Client(ours)
    worker = threading.Thread(target=serve, args=(Engine(FakeRunner(), EngineOptions()), link))
    worker.start()
    assert [[number for number, _ in frame.events] for frame in client.run(add(1))] == [[1], [1], [1]]
    assert [[number for number, _ in frame.events] for frame in client.run(add(2))] == [[2], [2], [2]]
    ours.sendall(encode(Commands(close=True)))
    worker.join(20)
    assert link.waits == [True, False, False, True, False, False, True]


def test_the_parents_end_ends_it_whatever_is_left_to_do(pair):
    ours, theirs = pair
    ours.sendall(encode(add(1, max_tokens=200)))
    ours.shutdown(socket.SHUT_WR)
    engine = Engine(FakeRunner(), EngineOptions())
    serve(engine, Link(theirs))
    assert engine.has_work


def test_what_arrives_during_a_step_is_merged_in_order(pair):
    ours, theirs = pair
    ours.sendall(encode(add(1)) + encode(Commands(abort=[1])) + encode(add(2)) + encode(Commands(clear_cache=True)))
    commands = Link(theirs).receive(wait=True)
    assert [request.number for request in commands.add] == [1, 2]
    assert (commands.abort, commands.clear_cache, commands.close) == ([1], True, False)


def test_a_silent_socket_is_no_reason_to_wait_while_there_is_work(pair):
    _, theirs = pair
    assert not Link(theirs).receive(wait=False)


def test_the_environment_keeps_what_the_user_has_set():
    spec = EngineSpec(model_name="m", folder="/m", num_threads=3, cache_folder="/cache")
    environment = child_environment(spec, {"OMP_NUM_THREADS": "1", "HOME": "/home", "PYTHONPATH": "/mine"})
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["NUMBA_NUM_THREADS"] == "3"
    assert environment["GOMP_SPINCOUNT"] == "1000"
    assert environment["NUMBA_CACHE_DIR"] == "/cache"
    assert environment["HOME"] == "/home"
    assert environment["PYTHONPATH"].endswith(":/mine")
