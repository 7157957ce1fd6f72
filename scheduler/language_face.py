"""A language model as KServe clients and ensembles see it: text in a tensor, text out, streamed or whole."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from backends.api.base import TokenEngine
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import GenerateRequest, InferenceRequest, InferenceResponse, TokenEvent, TokenLogprobs
from backends.api.statistics import ModelStatistics
from backends.api.tensor import Tensor
from scheduler.language_sampling import LanguageSampling, read_sampling, sampling_params
from scheduler.language_tensors import TextPart, TextRequest, answer_tensors, read_request

if TYPE_CHECKING:
    from backends.text.stream import TextStream
    from backends.text.tokenizer import Tokenizer

_LONG = 16_384  # characters, above which a prompt is tokenized off the event loop: about 5 ms


class Generator(Protocol):
    """What the face needs of the model behind it."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def version(self) -> str: ...
    @property
    def tokenizer(self) -> "Tokenizer": ...
    @property
    def max_model_len(self) -> int: ...

    @property
    def engine(self) -> TokenEngine: ...
    @property
    def statistics(self) -> ModelStatistics: ...


class _Choice:
    """One sample of an answer, from the engine's tokens to the text that is next to be sent."""

    def __init__(
        self,
        request: GenerateRequest,
        text: "TextStream",
        write_logprobs: "Callable[[list[TokenLogprobs]], bytes] | None",
    ) -> None:
        self.request = request
        self._text = text
        self._write_logprobs = write_logprobs
        self._pending = TextPart()
        self._entries: list[TokenLogprobs] = []

    def push(self, event: TokenEvent) -> None:
        delta = self._text.push(event)
        pending = self._pending
        pending.text += delta.text
        pending.num_tokens += len(delta.tokens)
        for entry in delta.logprobs or ():
            pending.cumulative_logprob += entry.logprob
            self._entries.append(entry)
        if delta.finish_reason is not None:
            pending.finish_reason = delta.finish_reason.value
            self.request.stream.cancel("the choice is complete")  # a stop string is found here, not in the engine

    @property
    def is_finished(self) -> bool:
        return self._text.finished

    @property
    def has_news(self) -> bool:
        return bool(self._pending.text) or self.is_finished

    def take(self) -> TextPart:
        """What has come since the last time."""
        part, entries = self._pending, self._entries
        self._pending, self._entries = TextPart(cumulative_logprob=part.cumulative_logprob), []
        if self._write_logprobs is not None:
            part.logprobs = self._write_logprobs(entries)
        return part

    async def read(self) -> None:
        """Push what there is, waiting for something. Raises the ServingError of a failed stream."""
        events = await self.request.stream.take()
        if not events:
            raise ServingError(Code.INTERNAL, "the engine's stream ended without a finish reason")
        for event in events:
            self.push(event)


class LanguageFace:
    """Answers KServe requests with what a model generates."""

    def __init__(self, model: Generator) -> None:
        self._model = model

    async def answer(self, request: InferenceRequest) -> tuple[InferenceResponse, int]:
        """The last answer and its number of rows, as `Answering` wants them; those before it are put on the stream."""
        started: list[GenerateRequest] = []
        try:
            return await self._generate(request, started), 1
        finally:
            for generation in started:
                generation.stream.cancel("the request has ended")

    async def _generate(self, request: InferenceRequest, started: list[GenerateRequest]) -> InferenceResponse:
        """Put all answers but the last on the stream, and return that."""
        asked = read_request(request)
        settings = read_sampling(asked.sampling, request.parameters)
        if asked.stream and settings.n > 1:
            raise ServingError(
                Code.INVALID, f"'stream' true: expected n = 1 in the sampling parameters, got {settings.n}"
            )
        tokens = await self._encode(asked.text, settings)
        choices = self._choices(request, asked, settings, tokens)
        request.times.compute_start = request.times.compute_input_end = time.monotonic()
        self._model.engine.check_together([choice.request for choice in choices])
        for choice in choices:
            self._model.engine.generate(choice.request)
            started.append(choice.request)
            # on the engine's stream, whose cancel may come from any thread
            request.stream.on_cancel(choice.request.stream.cancel)
        if not asked.stream:
            for choice in choices:
                while not choice.is_finished:
                    await choice.read()
        else:
            await self._stream(request, asked, choices[0], len(tokens))
        parts = [choice.take() for choice in choices]
        return self._response(request, answer_tensors(asked, parts, len(tokens)), final=True)

    async def _stream(self, request: InferenceRequest, asked: TextRequest, choice: _Choice, num_tokens: int) -> None:
        """Everything but the last piece."""
        index = 0
        while True:
            await choice.read()
            if choice.is_finished:
                return
            if choice.has_news:
                tensors = answer_tensors(asked, [choice.take()], num_tokens)
                waited = time.monotonic() - (request.times.received or request.times.queued)
                self._model.statistics.responded(index, "success", since_arrival=waited)
                request.stream.put(self._response(request, tensors, final=False))
                index += 1

    async def _encode(self, text: str, settings: LanguageSampling) -> list[int]:
        tokenizer, limit = self._model.tokenizer, self._model.max_model_len
        if settings.truncate_prompt_tokens is None:
            tokenizer.check_length(text, limit, "text_input")
        if len(text) > _LONG:
            tokens = await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=True)
        else:
            tokens = tokenizer.encode(text, add_special_tokens=True)
        tokens = tokens[-(settings.truncate_prompt_tokens or len(tokens)) :]
        if not tokens:
            raise ServingError(
                Code.INVALID, "input 'text_input': expected a prompt of at least one token", param="text_input"
            )
        if len(tokens) >= limit:
            text = f"This model's maximum context length is {limit} tokens, but the prompt has {len(tokens)} tokens."
            raise ServingError(Code.INVALID, text, param="text_input", reason="context_length_exceeded")
        return tokens

    def _choices(
        self, request: InferenceRequest, asked: TextRequest, settings: LanguageSampling, tokens: list[int]
    ) -> list[_Choice]:
        from backends.text.stream import TextOptions, TextStream

        model = self._model
        room = model.max_model_len - len(tokens)
        limit = room if settings.max_tokens is None else min(settings.max_tokens, room)
        options = TextOptions(
            settings.stop_strings,
            settings.include_stop_str_in_output,
            settings.skip_special_tokens,
            settings.min_tokens,
        )
        shows_logprobs = "logprobs" in asked.details and settings.logprobs is not None
        return [
            _Choice(
                GenerateRequest(
                    id=f"kserve-{uuid4().hex}",
                    prompt=tokens,
                    sampling=sampling_params(
                        settings,
                        max_tokens=limit,
                        vocab_size=model.tokenizer.vocab_size,
                        choice=choice,
                        wants_logprobs="cumulative_logprob" in asked.details,
                    ),
                    deadline=request.deadline,
                    cache_salt=request.cache_salt,
                ),
                TextStream(model.tokenizer, options, tokens),
                self._write_logprobs if shows_logprobs else None,
            )
            for choice in range(settings.n)
        ]

    def _write_logprobs(self, entries: list[TokenLogprobs]) -> bytes:
        """For each token an object of token id -> its log-probability, rank and text: the sampled one and the best."""
        tokenizer = self._model.tokenizer

        def entry(token: int, logprob: float, rank: int) -> dict[str, object]:
            text = tokenizer.token_bytes(token).decode(errors="replace")
            return {"logprob": logprob, "rank": rank, "decoded_token": text}

        return json.dumps(
            [
                {str(each.token): entry(each.token, each.logprob, each.rank)}
                | {str(token): entry(token, value, rank) for rank, (token, value) in enumerate(each.top, start=1)}
                for each in entries
            ]
        ).encode()

    def _response(self, request: InferenceRequest, tensors: list[Tensor], *, final: bool) -> InferenceResponse:
        wanted = {output.name for output in request.outputs}
        outputs = [tensor for tensor in tensors if not wanted or tensor.name in wanted]
        return InferenceResponse(self._model.config.name, self._model.version, outputs, request.id, final=final)
