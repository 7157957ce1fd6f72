from typing import Any

import pytest

from backends.api.errors import Code, ServingError
from backends.text.template import ChatTemplate, model_template
from backends.text.template_limits import RenderLimits
from backends.text.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


@pytest.fixture
def templates(template_sources: dict[str, str]) -> dict[str, ChatTemplate]:
    return {name: ChatTemplate(source, SPECIAL) for name, source in template_sources.items()}


def test_the_example_models_prompt_is_the_one_it_was_trained_on(smollm2: Tokenizer) -> None:
    template = ChatTemplate(smollm2.chat_template or "", smollm2.special_tokens)
    text = template.render([user("hi")])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(smollm2.encode(text)) == 31


def test_a_models_template_comes_from_its_files_unless_another_is_given(
    smollm2: Tokenizer, byte_level: Tokenizer
) -> None:
    own, other = model_template(smollm2), model_template(smollm2, "{{ eos_token }}")
    assert own is not None
    assert own.render([user("hi")]).endswith("<|im_start|>assistant\n")
    assert other is not None
    assert other.render([user("hi")]) == "<|im_end|>"
    assert model_template(byte_level) is None


# Content


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "gemma", "parts", "only_parts"])
def test_a_list_of_text_parts_is_rendered_like_text(templates: dict[str, ChatTemplate], name: str) -> None:
    template = templates[name]
    whole = template.render([user("hello")], add_generation_prompt=False)
    assert "hello" in whole
    assert "type" not in whole
    assert template.render([user([{"type": "text", "text": "hello"}])], add_generation_prompt=False) == whole


def test_parts_are_joined_by_lines_where_the_template_wants_text(templates: dict[str, ChatTemplate]) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in templates["chatml"].render([user(parts)])


@pytest.mark.parametrize("name", ["chatml", "llama3", "parts", "only_parts"])
def test_null_and_missing_content_are_empty_text(templates: dict[str, ChatTemplate], name: str) -> None:
    render = templates[name].render
    empty = render([user("x"), assistant("")])
    assert render([user("x"), assistant(None)]) == render([user("x"), {"role": "assistant"}]) == empty
    assert "None" not in empty


def test_content_that_is_not_text_is_refused_with_its_path(templates: dict[str, ChatTemplate]) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(ServingError, match="image_url") as caught:
        templates["chatml"].render([system("s"), user(parts)])
    assert (caught.value.code, caught.value.param) == (Code.INVALID, "messages[1].content[1]")
    assert caught.value.reason == "unsupported_value"
    with pytest.raises(ServingError, match="expected a string or a list"):
        templates["chatml"].render([user(5)])


# Roles


def test_developer_messages_are_system_messages_unless_the_template_knows_them(
    templates: dict[str, ChatTemplate],
) -> None:
    developer = [{"role": "developer", "content": "d"}, user("u")]
    assert templates["chatml"].render(developer) == templates["chatml"].render([system("d"), user("u")])
    knows = ChatTemplate("{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{# developer #}")
    assert knows.render(developer) == "developer=d;user=u;"


def test_system_messages_stay_where_the_template_takes_them_anywhere(templates: dict[str, ChatTemplate]) -> None:
    text = templates["chatml"].render([system("a"), user("u"), system("b")])
    assert text.index("system\na") < text.index("user\nu") < text.index("system\nb")


def test_system_messages_are_merged_into_the_first_where_the_template_insists(
    templates: dict[str, ChatTemplate],
) -> None:
    chat = [system("a"), user("u"), assistant("v"), system("b"), user("w")]
    merged = [system("a\n\nb"), user("u"), assistant("v"), user("w")]
    assert templates["mistral"].render(chat) == templates["mistral"].render(merged)


def test_a_template_without_a_system_role_gets_it_before_the_first_question(
    templates: dict[str, ChatTemplate],
) -> None:
    template = templates["gemma"]
    assert template.render([system("be brief"), user("hi")]) == template.render([user("be brief\n\nhi")])


def test_other_roles_pass_through(templates: dict[str, ChatTemplate]) -> None:
    assert "<|im_start|>narrator\nx" in templates["chatml"].render([{"role": "narrator", "content": "x"}])


# Tools


def test_arguments_are_given_to_the_template_as_objects(templates: dict[str, ChatTemplate]) -> None:
    def called(arguments: Any) -> str:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return templates["parts"].render([user("u"), {"role": "assistant", "content": None, "tool_calls": [call]}])

    assert '{"a": "é"}' in called('{"a": "\\u00e9"}')
    assert "{}" in called("")
    assert '"{half"' in called("{half")
    deep = "[" * 100_000
    assert deep in called(deep + "]" * 100_000)


@pytest.mark.parametrize("calls", [None, []])
def test_no_tool_calls_are_no_key(templates: dict[str, ChatTemplate], calls: Any) -> None:
    chat = [user("u"), {**assistant("plain"), "tool_calls": calls}]
    assert templates["llama3"].render(chat) == templates["llama3"].render([user("u"), assistant("plain")])


def test_the_template_for_tools_is_used_where_there_are_tools() -> None:
    template = ChatTemplate("plain", tool_source="{{ tools[0].name }}")
    assert template.render([user("u")]) == template.render([user("u")], tools=[]) == "plain"
    assert template.render([user("u")], tools=[{"name": "f"}]) == "f"


# Options


def test_variables_are_what_a_request_may_set(templates: dict[str, ChatTemplate]) -> None:
    assert templates["parts"].variables == {"enable_thinking"}
    assert templates["parts"].render([user("u")], enable_thinking=False).endswith("<think></think>")
    assert "date_string" in templates["llama3"].variables
    assert not {"messages", "tools", "bos_token"} & templates["llama3"].variables


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral", "parts", "only_parts"])
@pytest.mark.parametrize("parts", [False, True])
def test_the_last_message_can_be_continued(templates: dict[str, ChatTemplate], name: str, parts: bool) -> None:
    content = [{"type": "text", "text": "Once upon"}] if parts else "Once upon"
    text = templates[name].render(
        [user("u"), assistant(content)], add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("Once upon")


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ([], {}, "at least one message"),
        ([user("u")], {"continue_final_message": True}, "exclude each other"),
        ([user("")], {"continue_final_message": True, "add_generation_prompt": False}, "with content"),
        ([user("u")], {"chat_template": "x"}, "chat_template"),
        ([{"content": "x"}], {}, "role"),
        ([assistant("x")], {}, "must alternate"),
    ],
)
def test_what_cannot_be_rendered_is_the_callers_error(
    templates: dict[str, ChatTemplate], messages: list[Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServingError, match=said) as caught:
        templates["mistral"].render(messages, **options)
    assert caught.value.code is Code.INVALID
    assert caught.value.param


def test_what_the_template_raises_is_told(templates: dict[str, ChatTemplate]) -> None:
    with pytest.raises(ServingError, match="must alternate user/assistant") as caught:
        templates["mistral"].render([user("a"), user("b")])
    assert (caught.value.param, caught.value.reason) == ("messages", "invalid_prompt")


@pytest.mark.parametrize("source", ["{% for %}", "{{ 1 | nosuchfilter }}", "{% for a in b %}" * 30, "(" * 5000])
def test_a_template_that_does_not_compile_is_refused_at_load_or_renders(source: str) -> None:
    try:
        ChatTemplate(source).render([user("u")])
    except ServingError as error:
        assert error.reason == "invalid_prompt"


# Hostile templates

ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% for i in range(99999) %}{{ range(99999) | map('upper') | list | length }}{% endfor %}",
    "{% for i in [1, 2] recursive %}{{ loop(range(9)) }}{% endfor %}",
]
HUGE = [
    "{{ 'x' * 4000000000 }}",
    "{{ 2 ** 99999999 }}",
    "{{ '%4000000000d' % 1 }}",
    "{{ '%*d' % (4000000000, 1) }}",
    "{{ '%4000000000d' | format(1) }}",
    "{{ '{:4000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 4000000000) }}",
    "{{ 'x'.ljust(4000000000) }}",
    "{{ 'x' | center(4000000000) }}",
    "{{ 'x' | indent(4000000000) }}",
    "{{ [1] | batch(4000000000, 0) | list }}",
    "{{ [1] | tojson(indent=4000000000) }}",
    "{{ 1 | round(4000000000, 'ceil') }}",
    "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('x', 'x' * 999) %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('x', 'x' * 999) %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{% set x = 'x' * 9000000 %}{{ [x, x, x, x] | join('') }}",
    "{% set x = 'x' * 9000000 %}{{ x.join([x, x]) }}",
    "{{ [[1], [2]] | sum(start=[]) }}",
    "{% set x = 'x' * 99999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "{% macro m() %}{% for i in range(99999) %}" + "literal" * 1000 + "{% endfor %}{% endmacro %}{{ m() | length }}",
]
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append(1) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ ('a' | attr('__class__')).mro() }}",
    "{{ '{0.__class__}'.format(1) }}{{ lipsum }}{% include 'x' %}",
    "{{ 'abc'.translate({97: 'x'}) }}",
    "{% import 'os' as os %}",
]


@pytest.mark.parametrize("source", [*ENDLESS, *HUGE, *ESCAPES])
def test_a_hostile_template_ends_in_an_error_of_its_request(source: str) -> None:
    limits = RenderLimits(cpu_seconds=0.05, max_chars=2_000_000)
    with pytest.raises(ServingError) as caught:
        ChatTemplate(source, limits=limits).render([user("u")])
    assert (caught.value.code, caught.value.reason) == (Code.INVALID, "invalid_prompt")


@pytest.mark.parametrize(
    "chat", [[user("x" * 16_000_000)], [user("x")] * 30_000, [user("x" * 9_999)] * 300], ids=["one", "many", "both"]
)
def test_a_limit_met_for_the_sheer_length_of_a_chat_says_so(chat: list[Any]) -> None:
    source = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    limits = RenderLimits(cpu_seconds=0.01, max_chars=2_000_000)
    with pytest.raises(ServingError, match="characters, more than") as caught:
        ChatTemplate(source, limits=limits).render(chat)
    assert (caught.value.param, caught.value.reason) == ("messages", "context_length_exceeded")


def test_what_a_template_itself_says_of_a_long_chat_is_told(templates: dict[str, ChatTemplate]) -> None:
    with pytest.raises(ServingError, match="must alternate") as caught:
        templates["mistral"].render([user("a" * 200_000), user("b")])
    assert caught.value.reason == "invalid_prompt"


def test_an_honest_long_chat_is_within_the_limits(templates: dict[str, ChatTemplate]) -> None:
    chat = [message for turn in range(1000) for message in (user(f"question {turn} " * 20), assistant("answer " * 20))]
    for name in ("chatml", "llama3", "mistral", "parts"):
        assert "question 999" in templates[name].render(chat)
