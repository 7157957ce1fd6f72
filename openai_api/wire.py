"""Request bodies of chat and text completions -> checked requests. What these types hold needs no second look."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from openai_api.errors import invalid, unsupported
from openai_api.fields import INT64_MAX, Fields, read_integer, wrong_type
from openai_api.generation_fields import MAX_LOGPROBS, GenerationOptions, read_generation
from openai_api.json_body import parse_object
from openai_api.messages import Message, read_messages
from openai_api.options import OpenAIOptions
from openai_api.structured import read_constraint
from openai_api.tools import Mode, ToolUse, read_tools

logger = logging.getLogger(__name__)

Prompt = str | list[int]
DEFAULT_COMPLETION_TOKENS = 16
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_MAX_DOCUMENTS = 1024
# what templates get from here, and what would replace the template itself
_NOT_FOR_TEMPLATES = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "documents", "messages", "tokenize", "tools"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """`template_arguments` are further variables for the chat template, which takes those it knows."""

    options: GenerationOptions
    messages: list[Message]
    add_generation_prompt: bool
    continue_final_message: bool
    documents: list[Message] | None
    template_arguments: dict[str, Any]
    tools: ToolUse
    include_reasoning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """At least one prompt, each a text or token ids, none empty. `paths[i]` is where prompt i stood in the body."""

    options: GenerationOptions
    prompts: list[Prompt]
    paths: list[str]


def read_chat(body: bytes, limits: OpenAIOptions) -> ChatRequest:
    fields = Fields(parse_object(body))
    limit = fields.integer("max_completion_tokens", 1)
    older = fields.integer("max_tokens", 1)
    add_prompt = fields.flag("add_generation_prompt", True)
    continue_final = fields.flag("continue_final_message")
    if continue_final and add_prompt and fields.raw("add_generation_prompt") is not None:
        message = "'continue_final_message' and 'add_generation_prompt' cannot both be true"
        raise invalid("invalid_value", "continue_final_message", message)
    options = read_generation(
        fields,
        limits,
        max_tokens=older if limit is None else limit,
        logprobs=_chat_logprobs(fields),
        add_special_tokens=False,
        constraint=read_constraint(fields),
    )
    tools = read_tools(fields)
    request = ChatRequest(
        options=with_tools(options, tools),
        messages=read_messages(fields, limits),
        add_generation_prompt=add_prompt and not continue_final,
        continue_final_message=continue_final,
        documents=fields.array("documents", _document, _MAX_DOCUMENTS),
        template_arguments=template_arguments(fields, fields.choice("reasoning_effort", EFFORTS)),
        tools=tools,
        include_reasoning=fields.flag("include_reasoning", True),
    )
    log_unread(fields)
    return request


def read_completion(body: bytes, limits: OpenAIOptions) -> CompletionRequest:
    fields = Fields(parse_object(body))
    echo = fields.flag("echo")
    limit = fields.integer("max_tokens", 0)
    if limit == 0 and not echo:
        message = "'max_tokens': expected at least 1 (0 is allowed with 'echo': true), got 0"
        raise invalid("integer_below_min_value", "max_tokens", message)
    prompts, paths = _prompts(fields, limits.max_prompts)
    samples = fields.integer("n", 1, limits.max_choices) or 1
    if samples * len(prompts) > limits.max_prompts:
        message = f"'n': expected at most {limits.max_prompts} choices over all prompts, got {samples * len(prompts)}"
        raise invalid("integer_above_max_value", "n", message)
    _refuse_completion_members(fields)
    request = CompletionRequest(
        options=read_generation(
            fields,
            limits,
            max_tokens=DEFAULT_COMPLETION_TOKENS if limit is None else limit,
            logprobs=fields.integer("logprobs", 0, MAX_LOGPROBS),
            add_special_tokens=True,
            constraint=read_constraint(fields),
        ),
        prompts=prompts,
        paths=paths,
    )
    log_unread(fields)
    return request


def with_tools(options: GenerationOptions, tools: ToolUse) -> GenerationOptions:
    """Forced calls are a grammar; so are the arguments of strict tools, which are checked even where they are not forced."""
    checked = [tool.constraint for tool in tools.tools if tools.is_forced or tool.strict]
    if not tools.is_forced:
        return replace(options, constraints=(*options.constraints, *checked))
    if options.sampling.grammar is not None:
        param = options.constraints[0][1]
        raise invalid(
            "invalid_value", param, f"'{param}' is not allowed together with a 'tool_choice' that forces a call"
        )
    grammar = tools.grammar()
    assert grammar is not None
    if tools.mode is Mode.REQUIRED:
        checked.append((grammar, "tools"))
    return replace(
        options, sampling=msgspec.structs.replace(options.sampling, grammar=grammar), constraints=tuple(checked)
    )


def _chat_logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top and not wanted:
        raise invalid("invalid_value", "top_logprobs", "'top_logprobs' is only allowed together with 'logprobs': true")
    return (top or 0) if wanted else None


def template_arguments(fields: Fields, effort: str | None) -> dict[str, object]:
    """What a request says to the template by other ways than messages."""
    arguments: dict[str, object] = {}
    if effort is not None:
        arguments["reasoning_effort"] = effort
        arguments["enable_thinking"] = effort != "none"
    given = fields.raw("chat_template_kwargs")
    if given is None:
        return arguments
    if not isinstance(given, dict):
        raise wrong_type("chat_template_kwargs", "an object", given)
    for name in sorted(_NOT_FOR_TEMPLATES & given.keys()):
        param = f"chat_template_kwargs.{name}"
        raise unsupported(param, f"'{param}' is not allowed")
    return arguments | given


def _document(value: object, param: str) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return value


def _prompts(fields: Fields, max_prompts: int) -> tuple[list[Prompt], list[str]]:
    """The prompts and their paths; an array of integers is one prompt."""
    value = fields.raw("prompt")
    if value is None:
        raise fields.missing("prompt")
    if not isinstance(value, list) or (value and not isinstance(value[0], str | list)):
        return [_prompt(value, "prompt")], ["prompt"]
    paths = [f"prompt[{i}]" for i in range(len(value))]
    prompts = fields.array("prompt", _prompt, max_prompts, min_length=1) or []
    return prompts, paths


def _prompt(value: object, param: str) -> Prompt:
    if not isinstance(value, str | list):
        raise wrong_type(param, "a string or an array of token ids", value)
    if not value:
        raise invalid("invalid_value", param, f"'{param}': expected a prompt that is not empty")
    if isinstance(value, str):
        return value
    return [read_integer(item, f"{param}[{i}]", 0, INT64_MAX) for i, item in enumerate(value)]


def _refuse_completion_members(fields: Fields) -> None:
    if fields.string("suffix"):
        raise unsupported("suffix", "'suffix': the model has no template to fill in the middle")
    best_of = fields.integer("best_of", 1)
    if best_of not in (None, 1, fields.integer("n")):
        raise unsupported("best_of", "'best_of': choosing among more samples than 'n' is not supported")


def log_unread(fields: Fields) -> None:
    """Members that are ignored, for those who wonder."""
    unread = fields.unread()
    if unread and logger.isEnabledFor(logging.DEBUG):
        names = ", ".join(name[:40] for name in unread[:20])
        logger.debug("%d unknown members ignored: %s", len(unread), names)
