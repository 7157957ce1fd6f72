"""Frames as bytes."""

from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent, TokenLogprobs
from kvcache.events import BlockRemoved, BlocksCleared, BlockStored, EventBatch
from scheduler.frames import (
    Commands,
    EngineLimits,
    EngineStats,
    Failure,
    FrameBuffer,
    NewRequest,
    Progress,
    StepFrame,
    commands_decoder,
    encode,
    engine_decoder,
)

SAMPLING = SamplingParams(
    max_tokens=5, logit_bias={7: -1.5}, bad_words=((1, 2), (3,)), stop_token_ids=(4,), allowed_token_ids=(1, 2), seed=9
)
ENGINE_FRAMES = [
    EngineLimits(100, 10, 4, 50, 8),
    Progress("weights", 1.0, 2.0),
    Failure.of(ServingError(Code.INVALID, "no", param="p", reason="r", retry_after=2.0)),
    StepFrame(
        1.5,
        [(1, TokenEvent([5])), (2, TokenEvent([6], [TokenLogprobs(6, -0.5, 1, [(6, -0.5)])], FinishReason.STOP, 6, 4))],
        [(1, 1.25)],
        [(3, Failure("deadline", "too late"))],
        EngineStats(num_running=2),
        EventBatch(1, [BlockStored(b"name", b"parent", [1, 2]), BlockRemoved(b"old"), BlocksCleared()]),
    ),
]


@given(st.lists(st.sampled_from(ENGINE_FRAMES)), st.data())
def test_frames_survive_any_cut_of_the_stream(frames, data):
    stream = b"".join(map(encode, frames))
    buffer, bodies = FrameBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        bodies += buffer.feed(stream[:size])
        stream = stream[size:]
    assert [engine_decoder.decode(body) for body in bodies] == frames


def test_a_request_keeps_all_its_settings():
    request = GenerateRequest(
        id="r", prompt=[1, 2], sampling=SAMPLING, priority=-1, deadline=7.5, cache_salt="s", arrived=3.25
    )
    commands = Commands([NewRequest.of(4, request)], [1, 2], clear_cache=True)
    (body,) = FrameBuffer().feed(encode(commands))
    decoded = commands_decoder.decode(body)
    assert decoded == commands
    assert decoded.add[0] == NewRequest(4, [1, 2], SAMPLING, -1, 3.25, 7.5, "s")


def test_an_error_is_the_same_after_the_journey():
    error = ServingError(Code.OVERLOADED, "later", param="p", reason="r", retry_after=2.0)
    again = Failure.of(error).error()
    assert vars(again) == vars(error)


def test_commands_are_false_only_when_nothing_is_wanted():
    assert not Commands()
    assert all([Commands(abort=[1]), Commands(clear_cache=True), Commands(close=True)])
