"""The choices of an answer, each with what it asks of the engine."""

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from backends.api.request import GenerateRequest, SamplingParams
from backends.text.stream import TextOptions, TextStream
from openai_api.choice import Choice
from openai_api.generation_fields import GenerationOptions
from openai_api.identity import Identity
from openai_api.model import TextModel
from openai_api.prompt import PreparedPrompt
from openai_api.reasoning import behind_reasoning
from openai_api.sampling import for_vocabulary, with_seed


def make_choices(
    identity: Identity,
    model: TextModel,
    options: GenerationOptions,
    prompts: Sequence[PreparedPrompt],
    timeout: float | None,
) -> list[Choice]:
    """n choices for each prompt: sample j of prompt p has index p * n + j. `timeout` in seconds from now.

    Raises ServingError for token ids outside the model's vocabulary.
    """
    echo_logprobs = any(prompt.echo is not None and prompt.echo.with_entries for prompt in prompts)
    sampling = for_vocabulary(options, model.tokenizer, echo_logprobs)
    deadline = None if timeout is None else time.monotonic() + timeout
    text = TextOptions(options.stop, options.include_stop, options.skip_special_tokens, sampling.min_tokens)
    return [
        Choice(
            index := number * options.n + sample,
            GenerateRequest(
                id=f"{identity.id}-{index}",
                prompt=prompt.tokens,
                sampling=_for_choice(sampling, prompt, sample),
                priority=options.priority,
                deadline=deadline,
                cache_salt=options.cache_salt,
            ),
            TextStream(model.tokenizer, _for_speech(text, model, prompt), prompt.tokens),
            prompt.echo,
            prompt.speech,
        )
        for number, prompt in enumerate(prompts)
        for sample in range(options.n)
    ]


def _for_speech(text: TextOptions, model: TextModel, prompt: PreparedPrompt) -> TextOptions:
    """Special tokens that mark reasoning and calls are read as text here, and leave as neither."""
    if prompt.speech is None:
        return text
    found = (model.tokenizer.token_id(tag) for tag in prompt.speech.tag_texts)
    return replace(text, shown_tokens=frozenset(token for token in found if token is not None))


def _for_choice(sampling: SamplingParams, prompt: PreparedPrompt, sample: int) -> SamplingParams:
    min_tokens = min(sampling.min_tokens, prompt.max_tokens)
    if prompt.speech is not None and prompt.speech.begins_inside and sampling.grammar is not None:
        assert prompt.speech.tags is not None
        grammar = behind_reasoning(sampling.grammar, prompt.speech.tags)
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    elif prompt.speech is not None and sampling.grammar is None:
        sampling = msgspec.structs.replace(sampling, grammar=prompt.speech.grammar)
    return msgspec.structs.replace(with_seed(sampling, sample), max_tokens=prompt.max_tokens, min_tokens=min_tokens)
