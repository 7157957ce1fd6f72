"""What a custom model's process and the server say to each other; as bytes, see `frame_codec.py`.

The small tensors of a frame travel behind it, one behind the other; large ones lie in an `Arena`.
"""

from math import isfinite
from typing import NamedTuple

ParameterValue = bool | int | float | str | None
Number = float | str
"""A float; nan, inf and -inf by name, which JSON has no numbers for."""


def number_of(value: float) -> Number:
    """As it is sent; `float` reads it."""
    return value if isfinite(value) else str(value)


class TensorFrame(NamedTuple):
    """`size` bytes at `offset` of the sender's arena; -1: the next of the payload. BYTES as length-prefixed elements."""

    name: str
    datatype: str
    shape: list[int]
    size: int
    offset: int


class ErrorFrame(NamedTuple):
    """`code` is the name of a `Code`."""

    code: str
    message: str


class ResponseFrame(NamedTuple):
    tensors: list[TensorFrame]
    parameters: dict[str, ParameterValue]
    error: ErrorFrame | None


class RequestFrame(NamedTuple):
    """`window`: responses it may send before it is granted more."""

    number: int
    id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: dict[str, ParameterValue]
    outputs: list[str]
    inputs: list[TensorFrame]
    window: int


# From the server


class Open(NamedTuple):
    """Import the model. `filename` lies in `folder`, the version's."""

    folder: str
    filename: str
    version: str


class Complete(NamedTuple):
    """Call `auto_complete_config` with this configuration, in JSON."""

    config: str


class Initialize(NamedTuple):
    """`args` of the model's `initialize`. `iterative`: `execute` may ask for the same request again."""

    args: dict[str, str]
    decoupled: bool
    iterative: bool


class Batch(NamedTuple):
    """One call of `execute`."""

    number: int
    requests: list[RequestFrame]


class Work(NamedTuple):
    """What has waited together: batches to execute one after the other, or all at once where the model can."""

    batches: list[Batch]


class Cancel(NamedTuple):
    requests: list[int]


class Grant(NamedTuple):
    """`num_more` more responses of a request may be sent."""

    request: int
    num_more: int


class CallResponse(NamedTuple):
    """An answer to a `Call`; nothing comes after `final`. None: the end without an answer."""

    call: int
    response: ResponseFrame | None
    final: bool


class Reply(NamedTuple):
    """The answer to a `Control`, `Register` or `Measure`."""

    call: int
    value: Number
    error: ErrorFrame | None


class AskReady(NamedTuple):
    """Call the model's `is_ready`."""

    question: int


class Finalize(NamedTuple):
    pass


# From the model's process


class Opened(NamedTuple):
    """Import went well."""

    completes: bool


class Completed(NamedTuple):
    config: str


class Initialized(NamedTuple):
    """What the model's class has: an `async def execute`, a method `is_ready`."""

    is_async: bool
    has_is_ready: bool


class Failed(NamedTuple):
    """Import, completion or initialization raised."""

    message: str


class Answers(NamedTuple):
    """`execute` of a batch returned one response for each request. Times are of `time.monotonic()`."""

    batch: int
    start: float
    end: float
    responses: list[ResponseFrame]


class Executed(NamedTuple):
    """`execute` returned: answers come, or came, through senders. With `error`, those still open have failed.

    The requests `again` are to be executed once more.
    """

    batch: int
    start: float
    end: float
    error: ErrorFrame | None
    again: list[int]


class Response(NamedTuple):
    """One response through a sender; `final` ends the request. None: the end without an answer."""

    request: int
    response: ResponseFrame | None
    final: bool


class Call(NamedTuple):
    """A request to another model, made while `batch` is executed (-1: outside of any).

    `blocks`: execute waits for it, and with `blocks_all` every other execution of the process too.
    """

    call: int
    batch: int
    blocks: bool
    blocks_all: bool
    model: str
    version: str
    decoupled: bool
    request: RequestFrame


class CancelCall(NamedTuple):
    call: int


class Control(NamedTuple):
    """`operation` is load, unload or is_ready."""

    call: int
    operation: str
    model: str
    argument: str
    files: dict[str, str]


class Register(NamedTuple):
    """A metric of a family; both may exist already. Answered with a Reply whose value is the metric's number."""

    call: int
    family: str
    description: str
    kind: str
    labels: dict[str, str]
    buckets: list[float]


class Measure(NamedTuple):
    """`operation` is increment, set, observe or value; only value is answered."""

    metric: int
    operation: str
    value: Number
    call: int


class Ready(NamedTuple):
    """The answer to an `AskReady`."""

    question: int
    is_ready: bool


class Log(NamedTuple):
    """`level` is one of logging's."""

    level: int
    message: str


class Finalized(NamedTuple):
    message: str


# From both


class Free(NamedTuple):
    """The receiver's arena gets these blocks back."""

    offsets: list[int]


TYPES: tuple[type, ...] = (
    *(Open, Complete, Initialize, Work, Cancel, Grant, CallResponse, Reply, AskReady, Finalize),
    *(Opened, Completed, Initialized, Failed, Answers, Executed, Response),
    *(Call, CancelCall, Control, Register, Measure, Ready, Log, Finalized, Free),
)
