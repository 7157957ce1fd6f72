"""A model that speaks text in tensors, custom Python or an ensemble, on the chat endpoint.

Its config says so (parameter `openai`: `chat`) and names the tensors: `messages` (JSON) or `text_input`, and
`text_output`. `stream`, `sampling_parameters` (JSON, vLLM's names), `finish_reason`, `num_input_tokens` and
`num_output_tokens` are used where the config has them.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import orjson

from backends.api.base import LiveModel
from backends.api.caller import CALLER
from backends.api.checks import check_inputs
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest, InferenceResponse, SamplingParams
from backends.api.tensor import Tensor
from openai_api.ascii_json import ascii_json
from openai_api.errors import unsupported
from openai_api.exchange import Exchange
from openai_api.generation_fields import GenerationOptions
from openai_api.identity import Identity
from openai_api.model import PARAMETER
from openai_api.usage import Usage
from openai_api.wire import ChatRequest

_SAMPLING = (
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "ignore_eos",
    "seed",
)


@dataclass(slots=True)
class _Said:
    """What a model has said so far."""

    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"


async def serve_tensor_chat(exchange: Exchange, model: LiveModel, identity: Identity, request: ChatRequest) -> None:
    """Ask the model and answer with what it says, whole or as it comes. Raises ServingError."""
    options, said = request.options, _Said()
    _check(options, request)
    asked = _infer_request(model, request)
    try:
        model.infer(asked)
        if options.stream:
            await _stream(exchange, identity, options, _texts(model.config, asked, said), said)
        else:
            text = "".join([piece async for piece in _texts(model.config, asked, said)])
            await exchange.answer(orjson.dumps(_answer(identity, text, said)))
    finally:
        asked.stream.cancel("the client left")
        CALLER.get().spend(said.usage.prompt + said.usage.completion)
        exchange.fields = {"id": identity.id, "model": identity.model, **said.usage.as_fields()}


async def _stream(
    exchange: Exchange, identity: Identity, options: GenerationOptions, texts: AsyncIterator[str], said: _Said
) -> None:
    """The first text comes before the stream is opened, so that a refusal has its own status."""
    first = await anext(texts, "")
    events = await exchange.open_stream()
    await events.write(_chunk(identity, options, {"role": "assistant", "content": ""}, None))
    if first:
        await events.write(_chunk(identity, options, {"content": first}, None))
    async for text in texts:
        if text:
            await events.write(_chunk(identity, options, {"content": text}, None))
    last = _chunk(identity, options, {}, said.finish_reason)
    if options.include_usage:
        document = identity.as_json("chat.completion.chunk") | {"choices": [], "usage": said.usage.as_json()}
        last += b"data: " + ascii_json(document) + b"\n\n"
    await events.done(last)


def _chunk(identity: Identity, options: GenerationOptions, delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    document = identity.as_json("chat.completion.chunk") | {"choices": [choice]}
    if options.include_usage:
        document["usage"] = None
    return b"data: " + ascii_json(document) + b"\n\n"


def _answer(identity: Identity, text: str, said: _Said) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": said.finish_reason}
    return identity.as_json("chat.completion") | {"choices": [choice], "usage": said.usage.as_json()}


async def _texts(config: ModelConfig, request: InferenceRequest, said: _Said) -> AsyncIterator[str]:
    """The text of each response, as it comes. Raises the ServingError of a bad end, and INTERNAL where there is no text."""
    has_text = False
    async for response in request.stream:
        given = {tensor.name: tensor for tensor in response.outputs}
        text = given.get("text_output")
        if text is None:
            if given:
                raise _no_text(config)
            continue  # it only says that nothing more comes
        has_text = True
        _note(response, given, said)
        yield "".join(bytes(part).decode("utf-8", "replace") for part in text.as_numpy().flat)
    if not has_text:
        raise _no_text(config)


def _no_text(config: ModelConfig) -> ServingError:
    message = f"model '{config.name}' gave no output 'text_output', which it has by parameter '{PARAMETER}'"
    return ServingError(Code.INTERNAL, message)


def _note(response: InferenceResponse, given: dict[str, Tensor], said: _Said) -> None:
    if "finish_reason" in given:
        reason = bytes(given["finish_reason"].as_numpy().flat[0]).decode("utf-8", "replace")
        said.finish_reason = "length" if reason == "length" else "stop"
    if "num_input_tokens" in given:
        said.usage.prompt = int(given["num_input_tokens"].as_numpy().flat[0])
    if "num_output_tokens" in given:
        said.usage.completion += int(given["num_output_tokens"].as_numpy().sum())


def _check(options: GenerationOptions, request: ChatRequest) -> None:
    """Refuse what such a model cannot be asked."""
    asked = {
        "n": options.n > 1,
        "logprobs": options.sampling.logprobs is not None or options.sampling.prompt_logprobs is not None,
        "return_token_ids": options.return_token_ids,
        "echo": options.echo,
        "response_format": bool(options.constraints),
        "tools": bool(request.tools.tools),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise unsupported(name, f"'{name}' is not offered by this model", "unsupported_parameter")


def _infer_request(model: LiveModel, request: ChatRequest) -> InferenceRequest:
    config, options = model.config, request.options
    shape = (1, 1) if config.max_batch_size > 0 else (1,)

    def text(name: str, value: str) -> Tensor:
        return Tensor(name, "BYTES", shape, [value.encode()])

    inputs = []
    if config.input("messages") is not None:
        inputs.append(text("messages", json.dumps(request.messages)))
    if config.input("text_input") is not None:
        inputs.append(text("text_input", _text_of(request)))
    if config.input("stream") is not None:
        inputs.append(Tensor("stream", "BOOL", shape, np.full(shape, options.stream)))
    if config.input("sampling_parameters") is not None:
        inputs.append(text("sampling_parameters", json.dumps(_sampling(options))))
    salt = CALLER.get().salted(options.cache_salt)
    asked = InferenceRequest(config.name, model.version, inputs, cache_salt=salt)
    check_inputs(asked.inputs, config, asked.label)
    return asked


def _text_of(request: ChatRequest) -> str:
    """The last message's text."""
    content = request.messages[-1]["content"]
    if isinstance(content, list):
        return "\n".join(str(part["text"]) for part in content if "text" in part)
    return str(content or "")


def _sampling(options: GenerationOptions) -> dict[str, object]:
    """What the request set; what it left to the defaults is left to the model's."""
    defaults = SamplingParams(max_tokens=0)
    given = msgspec.structs.asdict(options.sampling)
    chosen = {name: given[name] for name in _SAMPLING if given[name] != getattr(defaults, name)}
    if options.max_tokens is not None:
        chosen["max_tokens"] = options.max_tokens
    if options.stop:
        chosen["stop"] = list(options.stop)
    return chosen
