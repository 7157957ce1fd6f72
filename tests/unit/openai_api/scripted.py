"""A model whose engine says what a test tells it to: real tokenizer and decoding, scripted tokens.

The vocabulary is one token a byte, a few words, and ChatML's special tokens, so a script can cut text anywhere.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import FinishReason, GenerateRequest, InferenceRequest, TokenEvent, TokenLogprobs
from backends.text.template import ChatTemplate
from backends.text.tokenizer import Tokenizer, TokenizerSettings

WORDS = (" hello", " stop", " world", "STOP", "ab", "abc")
SPECIAL = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% if persona %}{{ persona }}{% endif %}{# 'critic' is a role of this model #}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def toy_tokenizer(template: str = CHATML) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [word.replace(" ", "Ġ") for word in WORDS]
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *words])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    settings = TokenizerSettings(
        special_tokens={"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]},
        chat_templates={"default": template},
        adds_bos=False,
    )
    return Tokenizer(backend, settings)


TOKENIZER = toy_tokenizer()
EOS = TOKENIZER.token_id("<|im_end|>") or 0
WORD = {word: TOKENIZER.token_id(word.replace(" ", "Ġ")) or 0 for word in WORDS}


def tokens_of(text: str) -> list[int]:
    """One token a byte."""
    return TOKENIZER.encode(text)


def text_logprobs(token: int, count: int) -> TokenLogprobs:
    """The sampled token first, then others of the vocabulary, each 0.5 less likely than the one before."""
    others = [other for other in range(count + 1) if other != token]
    top = [(token, -0.25), *((other, -0.75 - 0.5 * i) for i, other in enumerate(others))][:count]
    return TokenLogprobs(token, -0.25, 1, top)


Script = Callable[[GenerateRequest], Sequence[int | ServingError]]


@dataclass
class ScriptedModel:
    """A text model that answers every request with `script`, one token an event, then end-of-sequence.

    Obeys max_tokens, ignore_eos, stop_token_ids, logprobs and cancel as an engine does. With `gate` set, a token
    leaves only for each `gate.release()`.
    """

    script: Script
    name: str = "chat"
    version: str = "1"
    max_model_len: int = 4096
    tokens_per_event: int = 1
    gate: asyncio.Semaphore | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    num_running: int = 0
    num_aborted: int = 0
    num_cached: int = 0
    refuse_after: int | None = None
    max_together: int | None = None
    retry_after: float = 2.0
    num_refused: int = 0
    is_ready: bool = True
    tokenizer: Tokenizer = TOKENIZER
    chat_template: str = CHATML
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.config = ModelConfig(name=self.name, backend="llm")
        if self.chat_template != CHATML:
            self.tokenizer = toy_tokenizer(self.chat_template)
        self.template = ChatTemplate(self.chat_template, TOKENIZER.special_tokens)

    def check_together(self, requests: Sequence[GenerateRequest]) -> None:
        if self.max_together is not None and len(requests) > self.max_together:
            raise ServingError(Code.INVALID, f"at most {self.max_together} at once")

    def generate(self, request: GenerateRequest) -> None:
        if self.refuse_after is not None and len(self.requests) >= self.refuse_after:
            self.num_refused += 1
            raise ServingError(Code.OVERLOADED, "the queue is full", retry_after=self.retry_after)
        self.requests.append(request)
        task = asyncio.get_running_loop().create_task(self._run(request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def until_running(self, count: int) -> None:
        """Return when exactly `count` requests are running."""
        while self.num_running != count:
            self.changed.clear()
            await self.changed.wait()

    def infer(self, request: InferenceRequest) -> None:
        raise ServingError(Code.UNSUPPORTED, "text only")

    def clear_cache(self) -> None:
        self.num_cached = 0

    async def close(self) -> None: ...

    async def _run(self, request: GenerateRequest) -> None:
        self.num_running += 1
        self.changed.set()
        cancelled = asyncio.Event()
        loop = asyncio.get_running_loop()
        request.stream.on_cancel(lambda: loop.call_soon_threadsafe(cancelled.set))
        try:
            await self._emit(request, cancelled)
        finally:
            self.num_running -= 1
            self.changed.set()
            self.num_aborted += request.stream.cancelled

    async def _emit(self, request: GenerateRequest, cancelled: asyncio.Event) -> None:
        """One item of the script after another until the request's end."""
        sampling, stream = request.sampling, request.stream
        script = list(self.script(request))
        if not any(isinstance(item, ServingError) for item in script):
            script += [EOS] * (sampling.max_tokens if sampling.ignore_eos else 1)
        pending: list[int] = []
        for count, item in enumerate(script, start=1):
            await self._pace(cancelled)
            if stream.cancelled:
                break
            if isinstance(item, ServingError):
                stream.fail(item)
                break
            pending.append(item)
            event = self._event(request, pending, count)
            if event.finish is not None:
                stream.finish(event)
                break
            if len(pending) == self.tokens_per_event:
                stream.put(event)
                pending = []

    async def _pace(self, cancelled: asyncio.Event) -> None:
        if self.gate is None:
            await asyncio.sleep(0)
            return
        released = asyncio.ensure_future(self.gate.acquire())
        left = asyncio.ensure_future(cancelled.wait())
        await asyncio.wait({released, left}, return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        left.cancel()

    def _event(self, request: GenerateRequest, tokens: list[int], count: int) -> TokenEvent:
        sampling = request.sampling
        event = TokenEvent(list(tokens))
        if sampling.logprobs is not None:
            event.logprobs = [text_logprobs(token, sampling.logprobs) for token in tokens]
        if count <= self.tokens_per_event:
            event.num_cached = self.num_cached
            if sampling.prompt_logprobs is not None:
                rest = [text_logprobs(token, sampling.prompt_logprobs) for token in request.prompt[1:]]
                event.prompt_logprobs = [None, *rest]
        if tokens[-1] in sampling.stop_token_ids and count > sampling.min_tokens:
            event.finish, event.stop_token = FinishReason.STOP, tokens[-1]
        elif tokens[-1] == EOS and not sampling.ignore_eos:
            event.finish = FinishReason.STOP
        elif count >= sampling.max_tokens:
            event.finish = FinishReason.LENGTH
        return event


def says(text: str) -> Script:
    """The same text for every request, one token a byte."""
    tokens = tokens_of(text)
    return lambda request: tokens


def tokens(*ids: int | ServingError) -> Script:
    return lambda request: ids
