"""A model's chat template: from messages to the prompt text it was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError

from backends.api.errors import Code, ServingError
from backends.text.template_limits import BUDGET, Budget, RenderLimits, num_chars
from backends.text.template_messages import Message, SystemRole, TemplateStyle, prepare_messages
from backends.text.template_sandbox import TemplateEnvironment
from backends.text.tokenizer import Tokenizer

_ENVIRONMENT = TemplateEnvironment()
_MAX_SOURCE = 1_000_000
# Of shorter chats no template that is any good meets a limit, so the template is at fault
_LONG_CHAT = 100_000
# Private-use characters: no message has them by accident
_MARK = "\ue0a7\ue0b3"
RESERVED_VARIABLES = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""What a template gets from here and no request may set as a variable of its own."""


class ChatTemplate:
    """Compiled once for a model, shared by threads. Renders as transformers' apply_chat_template does."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        tool_source: str | None = None,
        limits: RenderLimits | None = None,
    ) -> None:
        """`special_tokens` are the variables `bos_token` and the like; `tool_source` replaces `source` where tools are given.

        Raises ServingError(INVALID) with the line of a syntax error.
        """
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or RenderLimits()
        self._template = _Compiled(source, self._limits)
        self._tool_template = self._template if tool_source is None else _Compiled(tool_source, self._limits)
        self._style = self._probed(self._template, source)
        self._tool_style = self._style if tool_source is None else self._probed(self._tool_template, tool_source)

    @property
    def variables(self) -> frozenset[str]:
        """What the template may read that a request may give (`enable_thinking`), beside messages and special tokens.

        Also names that the template sets on one way only, since on others they are read from outside.
        """
        return self._template.variables - RESERVED_VARIABLES - self._special_tokens.keys()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt, special tokens written out: encode it without adding any.

        With `continue_final_message` the prompt ends inside the last message. Raises ServingError(INVALID): reason
        invalid_prompt with what the template says, context_length_exceeded for a chat so long that its rendering meets a
        limit, or unsupported_value for content that is not text.
        """
        if continue_final_message and add_generation_prompt:
            raise _invalid(
                "add_generation_prompt and continue_final_message exclude each other", "add_generation_prompt"
            )
        if not messages:
            raise _invalid("expected at least one message, got none")
        if refused := sorted(RESERVED_VARIABLES & kwargs.keys()):
            raise _invalid(f"'{refused[0]}' cannot be set here", "chat_template_kwargs")
        template, style = (self._tool_template, self._tool_style) if tools else (self._template, self._style)
        prepared = prepare_messages(messages, style)
        if continue_final_message:
            prepared[-1] = _marked(prepared[-1])
        text = self._rendered(
            template,
            self._limits,
            **kwargs,
            messages=prepared,
            tools=list(tools) if tools else None,
            documents=list(documents) if documents else None,
            add_generation_prompt=add_generation_prompt,
        )
        return _cut_at_mark(text) if continue_final_message else text

    def _rendered(self, template: "_Compiled", limits: RenderLimits, **variables: Any) -> str:
        try:
            return template.run({**self._special_tokens, **variables}, limits)
        except Exception as error:  # a template is a program of its own: whatever it raises is about this prompt
            length = num_chars([variables["messages"], variables["tools"], variables["documents"]])
            if isinstance(error, SecurityError) and length > _LONG_CHAT:
                raise _too_long(length) from error
            raise _invalid(f"the chat template does not accept these messages: {_said(error)}") from error

    def _probed(self, template: "_Compiled", source: str) -> TemplateStyle:
        """Find out what the template understands by rendering short chats with it."""
        chat = _Probe(self, template)
        as_string = chat.render([_message("user", "probe-a")])
        as_parts = chat.render([_message("user", [{"type": "text", "text": "probe-a"}])])
        takes_strings = "probe-a" in as_string
        takes_parts = as_parts == as_string if takes_strings else _holds_plainly(as_parts, "probe-a")
        style = TemplateStyle(
            takes_strings=takes_strings or not takes_parts,
            takes_parts=takes_parts,
            knows_developer="developer" in source,
        )
        return TemplateStyle(style.takes_strings, style.takes_parts, style.knows_developer, chat.system_role(style))


def model_template(tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate | None:
    """The chat template that a model's files hold, or `source` in its place; None for a model that cannot chat.

    Raises ServingError(INVALID) for a template that does not compile.
    """
    if source is not None:
        return ChatTemplate(source, tokenizer.special_tokens)
    if tokenizer.chat_template is None:
        return None
    return ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens, tokenizer.chat_templates.get("tool_use"))


class _Probe:
    def __init__(self, owner: ChatTemplate, template: "_Compiled") -> None:
        self._owner = owner
        self._template = template
        # a chat of a few words: what needs more would not end for a real one either
        self._limits = RenderLimits(owner._limits.cpu_seconds / 10, owner._limits.max_chars)

    def render(self, messages: list[Message]) -> str:
        """The prompt, "" where the template refuses."""
        try:
            return self._owner._rendered(
                self._template,
                self._limits,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except ServingError:
            return ""

    def system_role(self, style: TemplateStyle) -> SystemRole:
        first = [_message("system", "probe-a"), _message("user", "probe-b")]
        more = [_message("system", "probe-c"), _message("user", "probe-b"), _message("assistant", "probe-d")]
        later = [_message("system", "probe-e"), _message("user", "probe-f")]
        if not self._keeps([first[0], *more, *later], ["probe-a", "probe-c", "probe-e"], style):
            return SystemRole.FIRST_ONLY if self._keeps(first, ["probe-a"], style) else SystemRole.UNKNOWN
        return SystemRole.ANYWHERE

    def _keeps(self, messages: list[Message], texts: list[str], style: TemplateStyle) -> bool:
        text = self.render(prepare_messages(messages, style))
        return all(wanted in text for wanted in texts)


class _Compiled:
    """A template as code."""

    def __init__(self, source: str, limits: RenderLimits) -> None:
        if len(source) > _MAX_SOURCE:
            raise _invalid(
                f"expected a template of at most {_MAX_SOURCE} characters, got {len(source)}", "chat_template"
            )
        self._source_length = len(source)
        token = BUDGET.set(Budget(limits, len(source)))
        try:
            self._template, self.variables = _ENVIRONMENT.template(source)
        except Exception as error:  # Jinja's syntax errors, and Python's for what Jinja makes of deep nesting
            line = getattr(error, "lineno", None)
            place = f"line {line}: " if line else ""
            raise _invalid(f"the chat template cannot be compiled: {place}{_said(error)}", "chat_template") from error
        finally:
            BUDGET.reset(token)

    def run(self, variables: dict[str, Any], limits: RenderLimits) -> str:
        budget = Budget(limits, self._source_length)
        token = BUDGET.set(budget)
        pieces = []
        try:
            for piece in self._template.generate(variables):
                budget.step()
                pieces.append(piece)
        finally:
            BUDGET.reset(token)
        return "".join(pieces)


def _message(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def _holds_plainly(text: str, wanted: str) -> bool:
    """Whether `wanted` was printed by itself, not as part of a printed list."""
    return wanted in text and "'type'" not in text and '"type"' not in text


def _marked(message: Message) -> Message:
    """The message with a mark and a space behind its last text."""
    content = message["content"]
    if not content:
        raise _invalid("continue_final_message needs a last message with content, got none")
    if isinstance(content, str):
        return {**message, "content": f"{content}{_MARK} "}
    *before, last = content
    return {**message, "content": [*before, {**last, "text": f"{last['text']}{_MARK} "}]}


def _cut_at_mark(text: str) -> str:
    """The prompt up to the mark; a template that trimmed the space behind it trims the text before it too."""
    place = text.rfind(_MARK)
    if place < 0:
        raise _invalid("continue_final_message: the chat template does not print the last message")
    end = place + len(_MARK)
    return text[:place] if text[end : end + 1] == " " else text[:place].rstrip()


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _invalid(what: str, param: str = "messages") -> ServingError:
    return ServingError(Code.INVALID, what, param=param, reason="invalid_prompt")


def _too_long(length: int) -> ServingError:
    text = f"the messages have {length} characters, more than the chat template may handle"
    return ServingError(Code.INVALID, text, param="messages", reason="context_length_exceeded")
