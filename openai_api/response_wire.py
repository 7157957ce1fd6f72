"""The body of `/v1/responses` -> a chat, and what the response repeats of the request."""

from dataclasses import dataclass, replace
from typing import Any

from backends.api.errors import Code, ServingError
from openai_api.errors import invalid, unsupported
from openai_api.fields import INT64_MAX, Fields, read_string
from openai_api.generation_fields import MAX_LOGPROBS, GenerationOptions, read_generation
from openai_api.json_body import parse_object
from openai_api.options import OpenAIOptions
from openai_api.response_input import read_input
from openai_api.structured import read_text_constraint
from openai_api.tools import read_flat_tools
from openai_api.wire import EFFORTS, ChatRequest, log_unread, template_arguments, with_tools

_LOGPROBS = "message.output_text.logprobs"
# the others ask for what only tools that we do not host could give
_INCLUDABLE = frozenset(
    {
        _LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
_REFUSED = ("background", "context_management", "conversation", "prompt")
_OF_OTHER_ENDPOINTS = ("best_of", "continue_final_message", "echo", "prompt_logprobs", "return_token_ids", "suffix")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """`repeated` are members of the response that say what was asked for."""

    chat: ChatRequest
    repeated: dict[str, Any]


def read_response(body: bytes, limits: OpenAIOptions) -> ResponseRequest:
    """Raises ServingError for what is wrong and for what a server without a memory cannot do."""
    fields = Fields(parse_object(body))
    _refuse(fields)
    reasoning = fields.child("reasoning") or Fields({}, "reasoning")
    effort = reasoning.choice("effort", EFFORTS)
    summary = reasoning.choice("summary", ("auto", "concise", "detailed"))
    cuts = fields.choice("truncation", ("auto", "disabled")) == "auto"
    options = read_generation(
        fields,
        limits,
        max_tokens=fields.integer("max_output_tokens", 1),
        logprobs=_logprobs(fields),
        add_special_tokens=False,
        constraint=read_text_constraint(fields),
    )
    options = replace(options, truncate=-1) if cuts and options.truncate is None else options
    tools = read_flat_tools(fields)
    chat = ChatRequest(
        options=with_tools(options, tools),
        messages=read_input(fields, limits),
        add_generation_prompt=True,
        continue_final_message=False,
        documents=None,
        template_arguments=template_arguments(fields, effort),
        tools=tools,
        include_reasoning=fields.flag("include_reasoning", True),
    )
    repeated = {
        **_repeated(fields, options),
        "reasoning": {"effort": effort, "summary": summary},
        "truncation": "auto" if cuts else "disabled",
    }
    log_unread(fields)
    return ResponseRequest(chat=chat, repeated=repeated)


def _refuse(fields: Fields) -> None:
    if fields.raw("previous_response_id") is not None:
        raise not_kept("previous_response_id")
    for name in _REFUSED:
        if fields.raw(name) not in (None, False):
            raise unsupported(name, f"'{name}' is not supported by this server, which keeps nothing between requests")
    for name in _OF_OTHER_ENDPOINTS:
        if fields.raw(name) not in (None, False):
            raise unsupported(name, f"'{name}' is not a member of this endpoint's requests")
    if fields.integer("n", 1) not in (None, 1):
        raise unsupported("n", "'n': a response has one choice")


def not_kept(param: str | None) -> ServingError:
    """A response was referred to that was answered and forgotten."""
    message = "This server does not store responses: send the earlier items again, as part of 'input'."
    reason = "previous_response_not_found" if param else "not_found"
    return ServingError(Code.NOT_FOUND, message, param=param, reason=reason)


def _logprobs(fields: Fields) -> int | None:
    """How many alternatives a token comes with; None for no log-probabilities."""
    included = fields.array("include", _includable, len(_INCLUDABLE)) or []
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS) or 0
    return top if top or _LOGPROBS in included else None


def _includable(value: object, param: str) -> str:
    name = read_string(value, param, 64)
    if name not in _INCLUDABLE:
        raise invalid("invalid_value", param, f"'{param}': expected one of {', '.join(sorted(_INCLUDABLE))}")
    return name


def _repeated(fields: Fields, options: GenerationOptions) -> dict[str, Any]:
    sampling, text = options.sampling, fields.child("text") or Fields({}, "text")
    verbosity = text.choice("verbosity", ("low", "medium", "high"))
    return {
        "previous_response_id": None,
        "instructions": fields.string("instructions"),
        "tools": [_repeated_tool(tool) for tool in fields.array("tools", _as_it_is, INT64_MAX) or []],
        "tool_choice": fields.raw("tool_choice") or "auto",
        "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
        "text": {"format": _repeated_format(text)} | ({"verbosity": verbosity} if verbosity else {}),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_logprobs": sampling.logprobs or 0,
        "max_output_tokens": options.max_tokens,
        "max_tool_calls": fields.integer("max_tool_calls", 0),
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": fields.raw("metadata") or {},
        "safety_identifier": fields.string("safety_identifier"),
        "prompt_cache_key": fields.string("prompt_cache_key"),
        "user": fields.string("user"),
    }


def _as_it_is(value: object, param: str) -> object:
    return value


def _repeated_tool(tool: Any) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **tool}


def _repeated_format(text: Fields) -> dict[str, Any]:
    given: Any = text.raw("format") or {"type": "text"}
    return (
        {"description": None, "strict": False, **given} if given["type"] == "json_schema" else {"type": given["type"]}
    )
