"""The plain answers: each choice's stream, folded, in one JSON object."""

from collections.abc import Sequence

import orjson

from openai_api.calls import CallPiece
from openai_api.choice import Choice, Delta, fold
from openai_api.generation_fields import GenerationOptions
from openai_api.identity import Identity
from openai_api.logprobs import ChatLogprobs, CompletionLogprobs, LogprobsForm, TokenTexts, prompt_logprobs
from openai_api.usage import Usage

Collected = Sequence[tuple[Choice, Sequence[Delta]]]
"""Each choice with all its deltas."""


def chat_answer(
    identity: Identity, options: GenerationOptions, collected: Collected, usage: Usage, texts: TokenTexts
) -> bytes:
    answer = identity.as_json("chat.completion")
    answer["choices"] = [_chat_choice(options, choice, fold(deltas), texts) for choice, deltas in collected]
    answer["usage"] = usage.as_json()
    first = collected[0][0]
    top = options.sampling.prompt_logprobs
    if top is not None:
        answer["prompt_logprobs"] = prompt_logprobs(first.prompt_logprobs or [], texts, top)
    if options.return_token_ids:
        answer["prompt_token_ids"] = first.request.prompt
    return orjson.dumps(answer)


def completion_answer(
    identity: Identity, options: GenerationOptions, collected: Collected, usage: Usage, texts: TokenTexts
) -> bytes:
    answer = identity.as_json("text_completion")
    answer["choices"] = [_completion_choice(options, choice, fold(deltas), texts) for choice, deltas in collected]
    answer["usage"] = usage.as_json()
    return orjson.dumps(answer)


def _chat_choice(options: GenerationOptions, choice: Choice, delta: Delta, texts: TokenTexts) -> dict[str, object]:
    content = delta.text or (None if delta.calls else "")
    message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
    if delta.calls:
        message["tool_calls"] = _calls(delta.calls)
    if delta.reasoning:
        message["reasoning_content"] = message["reasoning"] = delta.reasoning
    return {"index": choice.index, "message": message, **_ending(options, delta, _chat_form(options, texts))}


def _calls(pieces: Sequence[CallPiece]) -> list[dict[str, object]]:
    """Each call's pieces put together."""
    calls: dict[int, list[CallPiece]] = {}
    for piece in pieces:
        calls.setdefault(piece.index, []).append(piece)
    return [
        {
            "id": parts[0].id,
            "type": "function",
            "function": {"name": parts[0].name, "arguments": "".join(part.arguments for part in parts)},
        }
        for parts in calls.values()
    ]


def _completion_choice(
    options: GenerationOptions, choice: Choice, delta: Delta, texts: TokenTexts
) -> dict[str, object]:
    top, shows_special = options.sampling.logprobs, not options.skip_special_tokens
    form = None if top is None else CompletionLogprobs(texts, top, shows_special, choice.echo_text)
    members = {"index": choice.index, "text": delta.text, **_ending(options, delta, form)}
    top = options.sampling.prompt_logprobs
    if top is not None:
        members["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs or [], texts, top)
    if options.return_token_ids:
        members["prompt_token_ids"] = choice.request.prompt
    return members


def _ending(options: GenerationOptions, delta: Delta, form: LogprobsForm | None) -> dict[str, object]:
    members: dict[str, object] = {
        "logprobs": None if form is None else form.render(delta.entries),
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
    }
    if options.return_token_ids:
        members["token_ids"] = delta.tokens
    return members


def _chat_form(options: GenerationOptions, texts: TokenTexts) -> LogprobsForm | None:
    return None if options.sampling.logprobs is None else ChatLogprobs(texts, options.sampling.logprobs)
