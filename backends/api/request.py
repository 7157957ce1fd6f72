"""What is asked of a model, and what it answers: tensors in `InferenceRequest`, tokens in `GenerateRequest`.

All times are seconds of `time.monotonic()`, which on one machine is the same clock in every process.
"""

import time
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from backends.api.stream import ResponseStream
from backends.api.tensor import Tensor

Parameter = bool | int | float | str


@dataclass(slots=True)
class RequestedOutput:
    """An output asked for by name. With `classification` > 0, its top classes as text instead of its values."""

    name: str
    classification: int = 0
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True)
class Times:
    """When a request passed each station, 0.0 where it has not (yet): what statistics and metrics are made of."""

    received: float = 0.0
    queued: float = 0.0
    compute_start: float = 0.0
    compute_input_end: float = 0.0
    compute_output_start: float = 0.0
    compute_end: float = 0.0


@dataclass(slots=True)
class ModelRun:
    """One model's part in a request: the version that took it, and the parts of an ensemble's steps."""

    model: str
    version: str
    times: Times
    steps: "list[ModelRun]"


@dataclass(slots=True)
class InferenceResponse:
    """One answer. `final` marks an answer known to be the last when it is sent.

    A decoupled model may also end its stream without a final answer: the stream's end says so.
    """

    model: str
    version: str
    outputs: list[Tensor]
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    final: bool = True


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """A checked-at-the-edge request for one model; its answers come on `stream`.

    `version` is "" where the version policy chooses; `taken_by` is the version whose model was handed it, and an ensemble
    adds the calls of its steps to `steps`. `outputs` empty means all. `timeout_us` and
    `priority` are the protocol's queue settings (priority 0: the model's default, 1 the highest).
    `deadline` is when the caller stops waiting, if it said so. `sequence_id` is 0 or "" outside sequences.
    `cache_salt` is the caller's own, for models that keep prefixes of prompts.
    """

    model: str
    version: str
    inputs: list[Tensor]
    outputs: list[RequestedOutput] = field(default_factory=list)
    id: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    stream: ResponseStream[InferenceResponse] = field(default_factory=ResponseStream)
    times: Times = field(default_factory=Times)
    taken_by: str = ""
    steps: list[ModelRun] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The prefix Triton puts before its request errors."""
        return f"[request id: {self.id or '<id_unknown>'}]"


class FinishReason(Enum):
    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # max_tokens or the model's length


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What an answer's text must be: `kind` "json_schema", "regex" or "lark" (llguidance's dialect), and its source.

    Checked where it is made (`backends/lm/grammar.py`).
    """

    kind: str
    text: str


# Within these no logit of a model leaves float32's range, multiplied or divided
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-6, 1e6
MAX_TEMPERATURE = 1e6


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen for one sequence. Checked where it is made (`openai_api/wire.py` and the llm backend).

    Order of application: logit_bias, allowed_token_ids, bad_words and min_tokens masks, penalties,
    temperature, then top_k, top_p and min_p on the distribution that is left.
    `temperature` 0 is greedy. `top_k` 0 is off. `seed` None draws one. `logprobs` None is off, k asks for the
    sampled token and the k best; likewise `prompt_logprobs`. Log-probabilities are of the model's raw
    distribution, before any of the above. With a `grammar` only tokens it allows are chosen, end-of-sequence where the
    text may end. All hold together, and a request that leaves no token to choose fails, but for the end of a text that
    its grammar lets end: that goes before the bans, `min_tokens` and `ignore_eos`.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """A prompt that is texts to make vectors of: `lengths` are theirs, one after another in the prompt.

    `seconds`: where in each a second text begins, for models that take pairs; the text's length where none does.
    """

    lengths: list[int]
    seconds: list[int]


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of `token`, its rank (1 the best), and the best alternatives, best first."""

    token: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class TokenEvent(msgspec.Struct, array_like=True):
    """What one step brought to one request: usually a token, several when speculation succeeds.

    `finish` is set on the last event alone; `stop_token` is then the stop token that ended it (it is
    in `tokens` too), None for end-of-sequence and length. `num_cached` is the number of prompt tokens that were
    found in the prefix cache, given on the first event; so is `prompt_logprobs`, its first entry None. A pooled prompt
    has one event: no tokens, and `vectors`, float32 values, those of one text after another.
    """

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None
    num_cached: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    vectors: bytes = b""


@dataclass(slots=True)
class GenerateTimes:
    """When a generate request passed each station, 0.0 where it has not (yet). It arrived at `GenerateRequest.arrived`.

    `scheduled` is the start of the step that first computed a part of it, the others are ends of steps.
    Written by its engine before the event in question is put on the stream.
    """

    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(slots=True, eq=False)
class GenerateRequest:
    """A tokenized prompt for a token engine; its tokens come on `stream`. With `pooling` it is for an engine that
    makes vectors: `sampling` then says nothing.

    `id` is ours, unique in the process tree, never the caller's. `priority`: lower goes first, as in
    vLLM. `cache_salt` keeps the prefixes of different tenants apart.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    pooling: Pooling | None = None
    arrived: float = field(default_factory=time.monotonic)
    stream: ResponseStream[TokenEvent] = field(default_factory=ResponseStream)
    times: GenerateTimes = field(default_factory=GenerateTimes)
