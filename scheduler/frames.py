"""What an engine and its client say to each other, one frame a step each way, and the bytes of it."""

import struct
from typing import Self

import msgspec

from backends.api.errors import Code, ServingError
from backends.api.request import GenerateRequest, Pooling, SamplingParams, TokenEvent
from kvcache.events import EventBatch

# From the client


class NewRequest(msgspec.Struct, array_like=True, frozen=True):
    """A `GenerateRequest` without its stream. `number` is unique for one life of an engine."""

    number: int
    prompt: list[int]
    sampling: SamplingParams
    priority: int
    arrived: float
    deadline: float | None
    cache_salt: str
    pooling: Pooling | None = None

    @classmethod
    def of(cls, number: int, request: GenerateRequest) -> Self:
        return cls(
            number,
            request.prompt,
            request.sampling,
            request.priority,
            request.arrived,
            request.deadline,
            request.cache_salt,
            request.pooling,
        )


class Commands(msgspec.Struct, array_like=True):
    """Everything the client wants since its last frame. Aborts come after additions: none overtakes its own."""

    add: list[NewRequest] = []
    abort: list[int] = []
    clear_cache: bool = False
    close: bool = False

    def __bool__(self) -> bool:
        return bool(self.add or self.abort or self.clear_cache or self.close)


# From the engine


class EngineLimits(msgspec.Struct, array_like=True, frozen=True, tag="ready"):
    """What requests are checked against; the frame that says an engine is ready."""

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    max_num_seqs: int


class Progress(msgspec.Struct, array_like=True, frozen=True, tag="progress"):
    """How far loading is: `done` of `total` in the unit of `what`; total 0 is unknown."""

    what: str
    done: float = 0.0
    total: float = 0.0


class Failure(msgspec.Struct, array_like=True, frozen=True, tag="failure"):
    """A ServingError under way: of one request, or as a frame of its own, of the load."""

    code: str
    message: str
    param: str | None = None
    reason: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: ServingError) -> Self:
        return cls(error.code.value, error.message, error.param, error.reason, error.retry_after)

    def error(self) -> ServingError:
        return ServingError(
            Code(self.code), self.message, param=self.param, reason=self.reason, retry_after=self.retry_after
        )


class EngineStats(msgspec.Struct, array_like=True, frozen=True):
    """The engine after a step. Names with `total` count since its start, the others are of now or of this step."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # cached ones, which may be reused, among them
    num_preemptions_total: int = 0
    num_cache_queries_total: int = 0  # prompt tokens
    num_cache_hits_total: int = 0  # prompt tokens
    num_prompt_tokens_total: int = 0  # of whole prompts, cached or not, once each: with the first token
    num_generation_tokens_total: int = 0
    num_drafts_total: int = 0
    num_accepted_drafts_total: int = 0
    num_steps_total: int = 0
    step_seconds: float = 0.0
    step_tokens: int = 0
    seconds_per_token: float = 0.0  # what one more prompt token adds to a step


class StepFrame(msgspec.Struct, array_like=True, tag="step"):
    """What one step brought. Requests are named by their numbers; events with a `finish` and failures are their ends."""

    time: float  # when the step ended
    events: list[tuple[int, TokenEvent]]
    scheduled: list[tuple[int, float]]  # requests computed for the first time, with the step's start
    failures: list[tuple[int, Failure]]
    stats: EngineStats
    kv_events: EventBatch | None = None


EngineFrame = EngineLimits | Progress | Failure | StepFrame

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
commands_decoder = msgspec.msgpack.Decoder(Commands)
engine_decoder: msgspec.msgpack.Decoder[EngineFrame] = msgspec.msgpack.Decoder(EngineFrame)


def encode(frame: Commands | EngineFrame) -> bytes:
    """A frame as it goes over a stream socket: its length in four bytes, then msgpack."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(frame, buffer, _LENGTH.size)
    _LENGTH.pack_into(buffer, 0, len(buffer) - _LENGTH.size)
    return bytes(buffer)


class FrameBuffer:
    """Cuts received bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete with `data`."""
        self._data += data
        bodies, start = [], 0
        while len(self._data) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, start)
            end = start + _LENGTH.size + length
            if end > len(self._data):
                break
            bodies.append(bytes(self._data[start + _LENGTH.size : end]))
            start = end
        del self._data[:start]
        return bodies
