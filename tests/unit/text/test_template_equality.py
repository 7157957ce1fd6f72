"""Our prompts against transformers' apply_chat_template, on the same templates."""

from typing import Any

import pytest

from backends.text.template import ChatTemplate
from backends.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Does <f>.", "parameters": {"type": "object"}}}]
CALL = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "  Be brief.  "}, {"role": "user", "content": " Hi \n"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello <b>&</b>"},
        {"role": "user", "content": "日本語 😀"},
    ],
    [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "123456789"},
    ],
]


def rendered_by_transformers(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    """None where the template refuses."""
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        (text,), _ = render_jinja_template(
            [messages], chat_template=source, documents=None, **{"tools": None, **SPECIAL, **options}
        )
    except TemplateError:
        return None
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "gemma", "parts"])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_prompts_equal_those_of_transformers(
    template_sources: dict[str, str], name: str, chat: list[dict[str, Any]], prompt: bool, tools: Any
) -> None:
    source = template_sources[name]
    want = rendered_by_transformers(source, chat, add_generation_prompt=prompt, tools=tools)
    if want is not None:
        got = ChatTemplate(source, SPECIAL).render(chat, tools=tools, add_generation_prompt=prompt)
        assert got == want


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "gemma", "parts"])
@pytest.mark.parametrize("ending", ["Once upon", "Once upon ", "a\n"])
def test_continued_prompts_equal_those_of_transformers(
    template_sources: dict[str, str], name: str, ending: str
) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ending}]
    source = template_sources[name]
    want = rendered_by_transformers(source, chat, add_generation_prompt=False, continue_final_message=True)
    got = ChatTemplate(source, SPECIAL).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert got == want


def test_the_example_models_prompts_equal_those_of_transformers(smollm2: Tokenizer) -> None:
    source = smollm2.chat_template or ""
    template = ChatTemplate(source, smollm2.special_tokens)
    for chat in CHATS:
        want = rendered_by_transformers(source, chat, add_generation_prompt=True, **smollm2.special_tokens)
        assert template.render(chat) == want
