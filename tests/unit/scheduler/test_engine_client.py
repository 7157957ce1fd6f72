"""An engine in a real child process, with the fake model."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import uvloop

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, SamplingParams
from scheduler.engine_client import EngineClient, RestartPolicy
from scheduler.engine_observer import EngineObserver
from scheduler.engine_options import EngineOptions
from scheduler.engine_spec import EngineSpec
from scheduler.frames import StepFrame
from tests.fakes.token_runner import make_runner, reference_tokens

pytestmark = pytest.mark.slow  # starts processes

SIZES = {"num_blocks": "4096", "block_size": "4", "max_model_len": "4000", "vocab_size": "97"}
QUICK = RestartPolicy(first=0.001, longest=0.01)


def spec(runner: str = "tests.fakes.token_runner:make_runner", **options) -> EngineSpec:
    return EngineSpec(
        model_name="fake", folder="/nowhere", parameters=SIZES, runner=runner, options=EngineOptions(**options)
    )


def request(prompt: list[int], max_tokens: int = 8, **fields) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return GenerateRequest(id="r", prompt=prompt, sampling=sampling, **fields)


def expected(asked: GenerateRequest) -> list[int]:
    return reference_tokens(asked.prompt, asked.sampling, 0, max_len=4000, vocab_size=97, eos=frozenset({0}))


async def collect(asked: GenerateRequest) -> list[int]:
    return [token async for event in asked.stream for token in event.tokens]


@asynccontextmanager
async def running(engine_spec: EngineSpec | None = None, **kwargs):
    client = EngineClient(engine_spec or spec(), restart=QUICK, **kwargs)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


class Recorder(EngineObserver):
    """Keeps everything an observer is told."""

    def __init__(self) -> None:
        self.frames, self.counts, self.ends, self.states, self.told = [], [], [], [], []
        self.reasons = []
        self.is_back = asyncio.Event()

    def state(self, state: str, reason: str) -> None:
        self.states.append(state)
        self.reasons.append(reason)
        if self.states[-2:] == ["restarting", "ready"]:
            self.is_back.set()

    def progress(self, *progress) -> None:
        self.told.append(progress)

    def step(self, frame: StepFrame) -> None:
        self.frames.append(frame)

    def tokens(self, request: GenerateRequest, count: int, gap: float | None) -> None:
        self.counts.append((count, gap))

    def ended(self, request: GenerateRequest, num_tokens: int, end: FinishReason | ServingError) -> None:
        self.ends.append((request, num_tokens, end))


async def test_requests_are_answered_together_and_times_are_told():
    observer = Recorder()
    async with running(observer=observer) as client:
        asked = [request([number, 2, 3], max_tokens=20) for number in range(1, 9)]
        for each in asked:
            client.generate(each)
        texts = await asyncio.gather(*map(collect, asked))
        assert texts == [expected(each) for each in asked]
        for each in asked:
            assert each.arrived <= each.times.scheduled <= each.times.first_token <= each.times.last_token
        await client.drain()
        assert client.load.num_running == client.load.num_waiting == 0
        assert observer.frames[-1].stats.num_generation_tokens_total == 160
        assert [(tokens, end) for _, tokens, end in observer.ends] == [(20, FinishReason.LENGTH)] * 8
        assert sum(count for count, _ in observer.counts) == 160
        assert [gap is None for _, gap in observer.counts].count(True) == 8
        assert all(gap is None or gap > 0 for _, gap in observer.counts)
        assert client.seconds_without_step == 0.0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_killed_child_fails_its_streams_and_the_engine_comes_back(run):
    run(killed_under_eight_streams())


async def killed_under_eight_streams() -> None:
    observer = Recorder()
    async with running(observer=observer) as client:
        asked = [request([number, 2, 3], max_tokens=3900) for number in range(8)]
        for each in asked:
            client.generate(each)
        firsts = [await anext(each.stream) for each in asked]
        assert all(first.tokens for first in firsts)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        for each in asked:
            with pytest.raises(ServingError, match=r"engine process ended \(signal 9\)") as caught:
                await collect(each)
            assert caught.value.code is Code.UNAVAILABLE
        assert not client.is_ready
        with pytest.raises(ServingError) as refused:
            client.generate(request([1]))
        assert refused.value.code is Code.UNAVAILABLE
        await observer.is_back.wait()
        assert client.is_ready
        again = request([1, 2, 3])
        client.generate(again)
        assert await collect(again) == expected(again)
    assert observer.states == ["ready", "restarting", "ready", "closed"]
    assert [end.code for _, _, end in observer.ends[:8]] == [Code.UNAVAILABLE] * 8


async def test_a_cancelled_stream_gives_its_blocks_back_and_is_counted():
    observer = Recorder()
    async with running(observer=observer) as client:
        long = request([1, 2, 3], max_tokens=3900)
        client.generate(long)
        await anext(long.stream)
        long.stream.cancel()
        ((_, num_tokens, end),) = observer.ends
        assert num_tokens >= 1
        assert end.code is Code.CANCELLED
        short = request([4, 5])
        client.generate(short)
        assert await collect(short) == expected(short)
        assert client.load.num_free_blocks == 4096
        assert client.load.num_running == 0


class IdleSeen(Recorder):
    """Says when a frame tells of an engine without requests."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = asyncio.Event()

    def step(self, frame: StepFrame) -> None:
        super().step(frame)
        if frame.stats.num_running == 0 and frame.stats.num_free_blocks == frame.stats.num_blocks:
            self.idle.set()


async def test_an_abort_that_empties_the_engine_is_told_without_another_request():
    observer = IdleSeen()
    async with running(observer=observer) as client:
        long = request([1, 2, 3], max_tokens=3900)
        client.generate(long)
        await anext(long.stream)
        observer.idle.clear()
        long.stream.cancel()
        await asyncio.wait_for(observer.idle.wait(), 30)


def on_third_try(folder, parameters, model_name, progress):
    """Loads, then fails, then loads, as the lines of a file count."""
    with Path(parameters["lives"]).open("a+") as lives:
        lives.write("one\n")
        lives.seek(0)
        if len(lives.readlines()) == 2:
            raise ServingError(Code.UNAVAILABLE, "the disk is away")
    return make_runner(folder, parameters, model_name, progress)


async def test_a_restart_that_fails_is_tried_again(tmp_path):
    observer = Recorder()
    fickle = msgspec.structs.replace(
        spec("tests.unit.scheduler.test_engine_client:on_third_try"), parameters=SIZES | {"lives": str(tmp_path / "n")}
    )
    async with running(fickle, observer=observer) as client:
        os.kill(client.pid, signal.SIGKILL)
        while observer.states[1:] != ["restarting", "restarting", "ready"]:
            observer.is_back.clear()
            await observer.is_back.wait()
        assert observer.reasons[2] == "the disk is away"
        asked = request([1, 2])
        client.generate(asked)
        assert await collect(asked) == expected(asked)


def test_restarts_wait_longer_and_longer_up_to_a_limit():
    policy = RestartPolicy(first=0.5, longest=4.0)
    assert [policy.delay(lives) for lives in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert policy.delay(10_000) == 4.0


async def test_before_it_is_ready_a_request_is_refused():
    client = EngineClient(spec())
    with pytest.raises(ServingError) as refused:
        client.generate(request([1]))
    assert refused.value.code is Code.UNAVAILABLE


def refuse(folder, parameters, model_name, progress):
    raise ServingError(Code.INVALID, "the weights are not there", param="model", reason="no_weights")


def crash(folder, parameters, model_name, progress):
    raise KeyError("layers")


async def test_a_load_error_arrives_as_the_error_it_was():
    client = EngineClient(spec("tests.unit.scheduler.test_engine_client:refuse"))
    with pytest.raises(ServingError, match="the weights are not there") as caught:
        await client.start()
    assert (caught.value.code, caught.value.param, caught.value.reason) == (Code.INVALID, "model", "no_weights")
    assert client.pid is None
    await client.close()


async def test_any_other_load_error_names_the_model_and_the_kind():
    client = EngineClient(spec("tests.unit.scheduler.test_engine_client:crash"))
    with pytest.raises(ServingError, match="model 'fake': loading failed: KeyError"):
        await client.start()
    await client.close()


async def test_progress_of_loading_is_told():
    observer = Recorder()
    async with running(observer=observer):
        assert observer.told == [("weights", 1.0, 2.0), ("warm-up", 0.0, 0.0)]


async def test_close_ends_open_streams_and_the_process():
    client = EngineClient(spec())
    await client.start()
    pid = client.pid
    asked = request([1, 2], max_tokens=3900)
    client.generate(asked)
    await anext(asked.stream)
    await client.close()
    with pytest.raises(ServingError) as caught:
        await collect(asked)
    assert caught.value.code is Code.UNAVAILABLE
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("turns", [1, 3])
async def test_close_while_it_starts_leaves_nothing_running(turns):
    client = EngineClient(spec())
    start = asyncio.create_task(client.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ServingError) as caught:
        await start
    assert caught.value.code is Code.UNAVAILABLE
    assert client.pid is None
    assert engine_children() == []


def engine_children() -> list[psutil.Process]:
    """Those of this process: other tests' libraries may keep workers of their own."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if "scheduler.engine_process" in child.cmdline()]


def hang(folder, parameters, model_name, progress):
    runner = make_runner(folder, parameters, model_name, progress)
    runner._on_step = lambda batch: len(batch.rows) > 1 and signal.pause()
    return runner


async def test_a_child_that_makes_no_step_is_killed_and_its_requests_fail():
    hanging = spec("tests.unit.scheduler.test_engine_client:hang")
    client = EngineClient(hanging, restart=RestartPolicy(first=30, step_timeout=0.05))
    await client.start()
    asked = [request([1, 2]), request([3, 4])]
    for each in asked:
        client.generate(each)
    for each in asked:
        with pytest.raises(ServingError, match="signal 9"):
            await collect(each)
    await client.close()


async def test_a_full_queue_refuses_at_once_and_says_when_to_retry():
    async with running(spec(max_num_seqs=1, max_num_queued_reqs=2)) as client:
        asked = [request([number, 2], max_tokens=3000) for number in range(3)]
        for each in asked:
            client.generate(each)
        with pytest.raises(ServingError) as refused:
            client.generate(request([9]))
        assert refused.value.code is Code.OVERLOADED
        assert refused.value.retry_after >= 1
        for each in asked:
            each.stream.cancel()
        last = request([9])
        client.generate(last)
        assert await collect(last) == expected(last)


async def test_finish_reason_and_cached_tokens_travel():
    async with running() as client:
        prompt = list(range(1, 30))
        for cached in (0, 28):
            asked = request(prompt, max_tokens=3)
            client.generate(asked)
            events = [event async for event in asked.stream]
            assert events[0].num_cached == cached
            assert events[-1].finish is FinishReason.LENGTH


PARENT = """
import asyncio
from scheduler.engine_client import EngineClient
from tests.unit.scheduler.test_engine_client import spec

async def main():
    client = EngineClient(spec())
    await client.start()
    print(client.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_child_dies_with_its_parent():
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    child = psutil.Process(int(await parent.stdout.readline()))
    parent.kill()
    await parent.communicate()
    assert await asyncio.to_thread(child.wait, 20) is None  # not ours, so its status is not told
