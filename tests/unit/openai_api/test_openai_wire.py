import json

import pytest

from backends.api.errors import Code, ServingError
from openai_api.options import OpenAIOptions
from openai_api.wire import read_chat, read_completion

LIMITS = OpenAIOptions()
USER = {"role": "user", "content": "hi"}
OPTIONAL_CHAT = [
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "stream",
    "stream_options",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "seed",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "reasoning_effort",
    "metadata",
    "modalities",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "prompt_logprobs",
    "echo",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "structured_outputs",
    "guided_json",
    "allowed_token_ids",
    "bad_words",
    "truncate_prompt_tokens",
    "truncation_side",
    "priority",
    "cache_salt",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "request_id",
    "kv_transfer_params",
    "use_beam_search",
    "service_tier",
    "store",
    "user",
]


def chat(**members):
    return read_chat(json.dumps({"model": "m", "messages": [USER], **members}).encode(), LIMITS)


def completion(**members):
    return read_completion(json.dumps({"model": "m", "prompt": "hi", **members}).encode(), LIMITS)


def failure(read, **members):
    with pytest.raises(ServingError) as caught:
        read(**members)
    assert caught.value.code in (Code.INVALID, Code.UNSUPPORTED)
    return caught.value.reason, caught.value.param


def test_defaults_are_openais():
    options = chat().options
    assert (options.n, options.max_tokens, options.stream, options.stop) == (1, None, False, ())
    assert (options.sampling.temperature, options.sampling.top_p, options.sampling.seed) == (1.0, 1.0, None)
    assert options.sampling.logprobs is None
    assert not options.add_special_tokens
    assert completion().options.max_tokens == 16
    assert completion().options.add_special_tokens


def test_null_is_absent_for_every_optional_member():
    assert chat(**dict.fromkeys(OPTIONAL_CHAT)).options == chat(model=None).options
    for name in ("suffix", "best_of", "logprobs", "seed", "max_tokens"):
        assert completion(**{name: None}) == completion()


def test_unknown_members_are_ignored():
    assert chat(unknown_x=1, options={"a": [1]}) == chat()


def test_the_newer_name_of_the_token_limit_wins():
    assert chat(max_completion_tokens=3, max_tokens=5).options.max_tokens == 3
    assert chat(max_tokens=5).options.max_tokens == 5


@pytest.mark.parametrize(
    ("members", "reason", "param"),
    [
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": ["hi"]}, "invalid_type", "messages[0]"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "invalid_type", "messages[1].content"),
        ({"messages": [{"role": "user", "content": [3]}]}, "invalid_type", "messages[0].content[0]"),
        ({"model": 3}, "invalid_type", "model"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"max_completion_tokens": -1}, "integer_below_min_value", "max_completion_tokens"),
        ({"max_tokens": 2**63}, "integer_above_max_value", "max_tokens"),
        ({"temperature": 2.5}, "decimal_above_max_value", "temperature"),
        ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
        ({"temperature": "1"}, "invalid_type", "temperature"),
        ({"top_p": 0}, "decimal_below_min_value", "top_p"),
        ({"top_p": 1.1}, "decimal_above_max_value", "top_p"),
        ({"n": 0}, "integer_below_min_value", "n"),
        ({"n": 129}, "integer_above_max_value", "n"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["a", ""]}, "invalid_value", "stop"),
        ({"stop": 3}, "invalid_type", "stop"),
        ({"stop": ["x"] * 17}, "array_above_max_length", "stop"),
        ({"stop": "x" * 257}, "string_above_max_length", "stop"),
        ({"presence_penalty": 3}, "decimal_above_max_value", "presence_penalty"),
        ({"frequency_penalty": -3}, "decimal_below_min_value", "frequency_penalty"),
        ({"logit_bias": {"AI": 5}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": 1000000}}, "decimal_above_max_value", "logit_bias"),
        ({"logit_bias": [1]}, "invalid_type", "logit_bias"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
        ({"logprobs": 3}, "invalid_type", "logprobs"),
        ({"seed": 2**63}, "integer_above_max_value", "seed"),
        ({"seed": -(2**63) - 1}, "integer_below_min_value", "seed"),
        ({"stream": "true"}, "invalid_type", "stream"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream_options": {"include_usage": None}}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
        ({"top_k": -2}, "integer_below_min_value", "top_k"),
        ({"min_p": 1.5}, "decimal_above_max_value", "min_p"),
        ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
        ({"repetition_penalty": 1e-38}, "decimal_below_min_value", "repetition_penalty"),
        ({"repetition_penalty": 1e38}, "decimal_above_max_value", "repetition_penalty"),
        ({"min_tokens": 9, "max_tokens": 3}, "integer_above_max_value", "min_tokens"),
        ({"allowed_token_ids": []}, "empty_array", "allowed_token_ids"),
        ({"bad_words": [""]}, "invalid_value", "bad_words[0]"),
        ({"stop_token_ids": ["x"]}, "invalid_type", "stop_token_ids[0]"),
        ({"prompt_logprobs": 1, "stream": True}, "unsupported_parameter", "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "unsupported_value", "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "integer_above_max_value", "prompt_logprobs"),
        ({"cache_salt": "a/b"}, "invalid_value", "cache_salt"),
        ({"cache_salt": ""}, "invalid_value", "cache_salt"),
        ({"truncate_prompt_tokens": -2}, "integer_below_min_value", "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "invalid_value", "truncation_side"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"chat_template": "{{ 1 }}"}, "unsupported_parameter", "chat_template"),
        (
            {"chat_template_kwargs": {"chat_template": "x"}},
            "unsupported_parameter",
            "chat_template_kwargs.chat_template",
        ),
        ({"chat_template_kwargs": {"tokenize": True}}, "unsupported_parameter", "chat_template_kwargs.tokenize"),
        ({"chat_template_kwargs": 3}, "invalid_type", "chat_template_kwargs"),
        ({"reasoning_effort": "some"}, "invalid_value", "reasoning_effort"),
        ({"metadata": {"k": "v" * 513}}, "invalid_value", "metadata"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "invalid_value", "metadata"),
        ({"modalities": ["text", "audio"]}, "unsupported_value", "modalities[1]"),
        ({"audio": {}}, "unsupported_parameter", "audio"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {}}},
            "missing_required_parameter",
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"tools": 3}, "invalid_type", "tools"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tool_choice": {}}, "invalid_value", "tool_choice"),
        ({"functions": []}, "unsupported_parameter", "functions"),
        ({"guided_json": "{"}, "invalid_json_schema", "guided_json"),
        ({"guided_choice": []}, "empty_array", "guided_choice"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "invalid_value", "guided_choice"),
        ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "unsupported_parameter", "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "invalid_value",
            "structured_outputs.disable_any_whitespace",
        ),
        ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
        ({"kv_transfer_params": {}}, "unsupported_parameter", "kv_transfer_params"),
    ],
)
def test_a_wrong_chat_member_is_named(members, reason, param):
    assert failure(chat, **members) == (reason, param)


@pytest.mark.parametrize(
    ("members", "reason", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "empty_array", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt[0]"),
        ({"prompt": [-1]}, "integer_below_min_value", "prompt[0]"),
        ({"prompt": ["a", 1]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, "a"]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, True]}, "invalid_type", "prompt[1]"),
        ({"prompt": 5}, "invalid_type", "prompt"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"logprobs": 21}, "integer_above_max_value", "logprobs"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"prompt": ["x"] * 9, "n": 128}, "integer_above_max_value", "n"),
    ],
)
def test_a_wrong_completion_member_is_named(members, reason, param):
    assert failure(completion, **members) == (reason, param)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [2]], ["a", [2]]),
        ([1.0, 2], [[1, 2]]),
    ],
)
def test_a_prompt_is_text_or_tokens_or_several(prompt, prompts):
    assert completion(prompt=prompt).prompts == prompts


def test_what_clients_send_without_effect_is_taken():
    assert chat(user="u", store=False, metadata={}, tools=[], verbosity="low", stop=[], tool_choice="none") == chat()
    assert (
        chat(response_format={"type": "text"}, modalities=["text"], parallel_tool_calls=False, logit_bias={}) == chat()
    )
    assert completion(best_of=1, suffix="") == completion()


def test_off_values_mean_off():
    assert chat(top_k=-1).options.sampling.top_k == 0
    assert chat(seed=-1).options.sampling.seed is None
    assert chat(logprobs=True).options.sampling.logprobs == 0


def test_an_echo_may_come_alone():
    assert completion(echo=True, max_tokens=0).options.max_tokens == 0


def test_messages_keep_what_templates_need():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    read = chat(messages=messages).messages
    assert read[0] == {"role": "user", "content": messages[0]["content"]}
    assert read[1] == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert read[2] == messages[2]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal"])
def test_a_part_that_is_no_text_is_refused_by_its_path(kind):
    content = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "x"}}]
    messages = [USER, {"role": "user", "content": content}]
    assert failure(chat, messages=messages) == ("unsupported_value", "messages[1].content[1]")


def test_many_wrong_items_make_one_short_error():
    with pytest.raises(ServingError) as caught:
        chat(messages=[{"role": "user", "content": 1}] * 4000)
    assert len(caught.value.message) < 200


def test_reasoning_effort_reaches_the_template():
    request = chat(reasoning_effort="none", chat_template_kwargs={"persona": "x"})
    assert request.template_arguments == {"reasoning_effort": "none", "enable_thinking": False, "persona": "x"}
    assert chat(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}).template_arguments == {
        "reasoning_effort": "low",
        "enable_thinking": False,
    }
