"""The engine on a thread of this process, and what stands between a request and any engine."""

import threading

import pytest

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, SamplingParams
from scheduler.calibrate import calibrate
from scheduler.engine import Engine
from scheduler.engine_observer import EngineObserver
from scheduler.engine_options import EngineOptions, check_request
from scheduler.frames import EngineLimits
from scheduler.local_engine import LocalEngine
from tests.fakes.token_runner import FakeClock, FakeRunner, reference_tokens

OPTIONS = EngineOptions(max_num_seqs=4, max_num_queued_reqs=3, max_num_queued_tokens=20)
LIMITS = EngineLimits(max_model_len=100, num_blocks=10, block_size=4, vocab_size=50, max_num_seqs=4)


def request(prompt: list[int], max_tokens: int = 6, **sampling) -> GenerateRequest:
    params = SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0, "ignore_eos": True} | sampling))
    return GenerateRequest(id="r", prompt=prompt, sampling=params)


class Gate:
    """Holds every step back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self, batch) -> None:
        self.reached.set()
        assert self.opened.wait(20)


def read(asked: GenerateRequest) -> list[int]:
    tokens = []
    while (event := asked.stream.get(20)) is not None:
        tokens += event.tokens
    return tokens


@pytest.fixture
async def local():
    """Makes engines and closes them."""
    engines = []

    def make(options: EngineOptions = OPTIONS, **sizes) -> LocalEngine:
        runner = FakeRunner(**sizes)
        engines.append((LocalEngine(Engine(runner, options), options), runner))
        return engines[-1][0]

    yield make
    for engine, runner in engines:
        await engine.close()
        assert runner.closed


async def test_tokens_come_on_the_stream_and_the_prompt_stays_as_it_was(local):
    engine = local()
    asked = request([1, 2, 3])
    engine.generate(asked)
    tokens = [token async for event in asked.stream for token in event.tokens]
    assert tokens == reference_tokens([1, 2, 3], asked.sampling, 0, max_len=256, vocab_size=97, eos=frozenset({0}))
    assert asked.prompt == [1, 2, 3]


async def test_a_cancelled_request_leaves_nothing_behind(local):
    gate = Gate()
    engine = local(on_step=gate)
    asked = request([1, 2, 3], max_tokens=200)
    engine.generate(asked)
    assert gate.reached.wait(20)
    asked.stream.cancel()
    gate.opened.set()
    other = request([4])
    engine.generate(other)
    assert len(read(other)) == 6
    assert (engine.load.num_running, engine.load.num_waiting) == (0, 0)
    assert engine.load.num_free_blocks == engine.load.num_blocks == 64


async def test_a_request_whose_reader_is_satisfied_has_ended_well(local):
    ends = []

    class Watch(EngineObserver):
        def ended(self, request, num_tokens, end):
            ends.append(end)

    gate = Gate()
    engine = LocalEngine(Engine(FakeRunner(on_step=gate), OPTIONS), OPTIONS, Watch())
    for satisfied in (True, False):
        asked = request([1, 2, 3], max_tokens=200)
        engine.generate(asked)
        asked.stream.cancel(satisfied=satisfied)
    gate.opened.set()
    await engine.close()
    assert ends[0] is FinishReason.STOP
    assert ends[1].code is Code.CANCELLED


async def test_a_full_queue_refuses_at_once_by_number_and_by_tokens(local):
    gate = Gate()
    engine = local(on_step=gate)
    asked = [request([number]) for number in range(1, 8)]
    for each in asked:
        engine.generate(each)
    with pytest.raises(ServingError, match="queue is full") as refused:
        engine.generate(request([9]))
    assert refused.value.code is Code.OVERLOADED
    assert refused.value.retry_after == 1
    asked.pop().stream.cancel()
    with pytest.raises(ServingError, match="the limit is 20"):
        engine.generate(request(list(range(1, 20))))
    gate.opened.set()
    assert all(len(read(each)) == 6 for each in asked)


async def test_what_the_queue_can_never_hold_at_once_is_refused_by_its_bound(local):
    engine = local()
    engine.check_together([request([1])] * 7)
    engine.check_together([request(list(range(1, 60)))])
    engine.check_together([request([1] * 10)] * 2)
    with pytest.raises(ServingError, match="8 choices at once.* at most 7 .max_num_seqs 4 and") as too_many:
        engine.check_together([request([1])] * 8)
    with pytest.raises(ServingError, match="22 tokens together.* at most 20 .max_num_queued_tokens") as too_long:
        engine.check_together([request([1] * 11)] * 2)
    assert too_many.value.code is too_long.value.code is Code.INVALID


async def test_an_idle_engine_takes_a_prompt_larger_than_the_queue(local):
    asked = request(list(range(1, 60)))
    engine = local()
    engine.generate(asked)
    assert len(read(asked)) == 6


async def test_drain_returns_when_every_request_has_ended(local):
    gate = Gate()
    engine = local(on_step=gate)
    asked = request([1])
    engine.generate(asked)
    gate.opened.set()
    await engine.drain()
    assert asked.stream.ended
    await engine.drain()


async def test_close_fails_what_is_open_and_refuses_what_comes(local):
    gate = Gate()
    engine = local(on_step=gate)
    asked = request([1])
    engine.generate(asked)
    gate.opened.set()
    await engine.close()
    with pytest.raises(ServingError) as refused:
        engine.generate(request([1]))
    assert refused.value.code is Code.UNAVAILABLE
    assert asked.stream.ended


async def test_an_engine_that_breaks_ends_every_stream_and_refuses_what_comes(local):
    def explode(batch):
        raise OSError("no device")

    engine = local(on_step=explode, options=EngineOptions(max_num_seqs=1))
    asked = [request([number]) for number in range(1, 6)]
    for each in asked:
        engine.generate(each)
    for each in asked:
        with pytest.raises(ServingError) as failed:
            read(each)
        assert failed.value.code is Code.INTERNAL
        assert "no device" not in failed.value.message
    await engine.drain()
    with pytest.raises(ServingError):
        engine.generate(request([1]))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request([]), "empty"),
        (request([1] * 40), "maximum context length is 100 tokens, of which the KV cache holds 40.*has 40 tokens"),
        (request([1] * 100), "maximum context length is 100 tokens"),
        (request([50]), "prompt: token id 50 is not in the vocabulary of 50 tokens"),
        (request([-1]), "token id -1"),
        (request([1], max_tokens=0), "max_tokens must be at least 1"),
        (request([1], stop_token_ids=(99,)), "stop_token_ids: token id 99"),
        (request([1], logit_bias={77: 1.0}), "logit_bias: token id 77"),
        (request([1], allowed_token_ids=(50,)), "allowed_token_ids: token id 50"),
        (request([1], bad_words=((1, 60),)), "bad_words: token id 60"),
    ],
)
def test_what_can_never_run_is_refused_at_the_door(asked, message):
    with pytest.raises(ServingError, match=message) as refused:
        check_request(asked, LIMITS)
    assert refused.value.code is Code.INVALID


def test_a_prompt_that_is_too_long_says_so_to_programs():
    with pytest.raises(ServingError) as refused:
        check_request(request([1] * 100), LIMITS)
    assert refused.value.reason == "context_length_exceeded"
    check_request(request([1] * 39), LIMITS)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_num_seqs": "0"}, "'max_num_seqs': expected a whole number from 1 to 4096, got '0'"),
        ({"max_num_seqs": "many"}, "'max_num_seqs': expected a whole number from 1 to 4096, got 'many'"),
        ({"max_num_batched_tokens": "8", "max_num_seqs": "16"}, r"must be at least 'max_num_seqs' \(16\)"),
        ({"itl_target_ms": "-1"}, "'itl_target_ms': expected a number from 0 to 1e"),
        ({"itl_target_ms": "nan"}, "itl_target_ms"),
        ({"seed": "-1"}, "seed"),
        ({"enable_prefix_caching": "perhaps"}, "enable_prefix_caching"),
    ],
)
def test_wrong_settings_name_the_field_and_the_value(parameters, message):
    with pytest.raises(ServingError, match=message) as refused:
        EngineOptions.from_parameters(parameters, "m")
    assert refused.value.code is Code.INVALID
    assert "model 'm'" in refused.value.message


def test_settings_are_read_from_text_and_strangers_left_alone():
    options = EngineOptions.from_parameters(
        {"max_num_seqs": "16", "enable_prefix_caching": "false", "itl_target_ms": "40", "dtype": "auto"}, "m"
    )
    assert (options.max_num_seqs, options.enable_prefix_caching) == (16, False)
    assert options.pace.itl_target == pytest.approx(0.04)


def test_calibration_learns_the_runners_step_time():
    clock = FakeClock()
    times = calibrate(FakeRunner(clock=clock, num_blocks=100), OPTIONS, clock)
    a, b, *_ = times.coefficients
    assert (a, b) == (pytest.approx(0.005, rel=0.2), pytest.approx(0.0005, rel=0.2))


def test_a_runner_that_cannot_step_is_never_called_ready():
    runner = FakeRunner()
    runner.fail_next = ValueError("bad weights")
    with pytest.raises(ServingError, match="first steps failed"):
        calibrate(runner, OPTIONS)
