"""What a request asks the model to continue: messages or texts -> tokens, checked against the model.

Everything here is plain and may take long; `routes.py` runs it on a worker thread for long bodies.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

from backends.api.errors import ServingError
from backends.text.decoder import decode
from backends.text.template import ChatTemplate
from openai_api.calls import call_format
from openai_api.choice import Echo
from openai_api.errors import invalid, unsupported
from openai_api.generation_fields import GenerationOptions
from openai_api.interpreter import Speech
from openai_api.messages import Message
from openai_api.model import TextModel
from openai_api.reasoning import reasoning_tags
from openai_api.sampling import check_tokens, token_limit, too_long
from openai_api.tools import ToolUse
from openai_api.wire import ChatRequest, CompletionRequest, Prompt

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """`max_tokens` is what may follow `tokens`, at least 1 (an engine always makes one). `speech` says how to read it."""

    tokens: list[int]
    max_tokens: int
    echo: Echo | None = None
    speech: Speech | None = None


def prepare_chat(model: TextModel, request: ChatRequest, strict: bool) -> list[PreparedPrompt]:
    """The one prompt of a chat. Raises ServingError, where it can with the path of the message at fault."""
    if model.template is None:
        raise unsupported("model", f"the model '{request.options.model}' has no chat template", "unsupported_endpoint")
    check_roles(request.messages, model.tokenizer.chat_template or "")
    text = render_chat(model.template, model, request)
    tokens = _encode(model, text, request.options, "messages")
    limit = token_limit(request.options.max_tokens, len(tokens), model.max_model_len, strict, "messages")
    return [PreparedPrompt(tokens, limit, _chat_echo(request), _speech(model, request, text))]


def render_chat(template: ChatTemplate, model: TextModel, request: ChatRequest) -> str:
    """The text of a chat's prompt, its tools described by the model's template or, where it knows none, by us."""
    known, tools = template.variables, request.tools
    messages = request.messages
    raw = [tool.raw for tool in tools.tools] or None
    if tools.is_forced and not _knows_tools(_source(model)):
        messages, raw = [{"role": "system", "content": _described(tools)}, *messages], None
    try:
        return template.render(
            messages,
            tools=raw,
            documents=request.documents,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            **{name: value for name, value in request.template_arguments.items() if name in known},
        )
    except ServingError as error:
        if error.reason != "context_length_exceeded":
            raise
        raise too_long(model.max_model_len, error.message, "messages") from None


def _source(model: TextModel) -> str:
    """Every template of the model, to be looked at for what it knows."""
    return "\n".join(model.tokenizer.chat_templates.values())


@lru_cache(maxsize=64)
def _knows_tools(source: str) -> bool:
    return "tools" in source


def _described(tools: ToolUse) -> str:
    lines = [json.dumps(tool.raw.get("function"), ensure_ascii=False) for tool in tools.tools]
    return "\n".join(["You answer by calling functions. These are the functions, as JSON:", *lines])


def _speech(model: TextModel, request: ChatRequest, prompt: str) -> Speech | None:
    source = _source(model)
    tags = reasoning_tags(source)
    if tags is None and not request.tools.tools:
        return None
    inside = tags is not None and prompt.rstrip().endswith(tags.start)
    if tags is not None and not inside and request.options.sampling.grammar is not None:
        tags = None  # the grammar leaves no room for reasoning
    return Speech(request.tools, call_format(source), tags, inside, request.include_reasoning)


def prepare_completion(model: TextModel, request: CompletionRequest, strict: bool) -> list[PreparedPrompt]:
    return [
        _completion(model, request.options, prompt, path, strict)
        for prompt, path in zip(request.prompts, request.paths, strict=True)
    ]


def check_roles(messages: list[Message], template: str) -> None:
    """Refuse a role of which neither OpenAI nor the model's template has heard: it would be rendered as if it meant
    something."""
    for place, message in enumerate(messages):
        role = str(message["role"])
        if role not in _ROLES and f"'{role}'" not in template and f'"{role}"' not in template:
            param = f"messages[{place}].role"
            raise invalid("invalid_value", param, f"'{param}': expected one of {', '.join(sorted(_ROLES))}")


def _completion(
    model: TextModel, options: GenerationOptions, prompt: Prompt, path: str, strict: bool
) -> PreparedPrompt:
    tokens = _tokens(model, options, prompt, path)
    limit = token_limit(options.max_tokens, len(tokens), model.max_model_len, strict, path)
    echo = None
    if options.echo:
        text = _echo_text(model, options, prompt, tokens)
        echo = Echo(text, with_entries=options.sampling.logprobs is not None, alone=options.max_tokens == 0)
    return PreparedPrompt(tokens, max(1, limit), echo)


def _echo_text(model: TextModel, options: GenerationOptions, prompt: Prompt, tokens: list[int]) -> str:
    if isinstance(prompt, str) and options.truncate is None:
        return prompt
    return decode(model.tokenizer, tokens, options.skip_special_tokens)


def _tokens(model: TextModel, options: GenerationOptions, prompt: Prompt, path: str) -> list[int]:
    if isinstance(prompt, str):
        return _encode(model, prompt, options, path)
    check_tokens(prompt, model.tokenizer.vocab_size, path)
    return _truncated(prompt, options, model.max_model_len, path)


def _encode(model: TextModel, text: str, options: GenerationOptions, path: str) -> list[int]:
    if options.truncate is None:
        model.tokenizer.check_length(text, model.max_model_len, path)
    tokens = model.tokenizer.encode(text, add_special_tokens=options.add_special_tokens)
    return _truncated(tokens, options, model.max_model_len, path)


def _truncated(tokens: list[int], options: GenerationOptions, max_model_len: int, path: str) -> list[int]:
    """`tokens` cut to what the request keeps: the end of them, or the start with truncation_side "right"."""
    if options.truncate is not None:
        keep = max_model_len - 1 if options.truncate == -1 else options.truncate
        if keep > max_model_len:
            raise too_long(max_model_len, f"truncate_prompt_tokens is {keep}", "truncate_prompt_tokens")
        tokens = tokens[max(0, len(tokens) - keep) :] if options.truncate_left else tokens[:keep]
    if not tokens:
        raise invalid("invalid_value", path, f"'{path}': expected a prompt of at least one token")
    return tokens


def _chat_echo(request: ChatRequest) -> Echo | None:
    """vLLM's chat echo: the last message's text, when it is one of the role that answers."""
    last: Message = request.messages[-1]
    if not request.options.echo or last["role"] != "assistant":
        return None
    content = last["content"]
    if isinstance(content, list):
        content = "\n".join(str(part["text"]) for part in content)
    return Echo(str(content or ""))
