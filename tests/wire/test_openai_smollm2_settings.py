"""A real model behind the OpenAI face: what the members of a request do to its answers."""

import json

import httpx
import jsonschema
import pytest

from tests.wire.smollm2 import smollm2_server

pytestmark = pytest.mark.slow
USER = [{"role": "user", "content": "Write a sentence about the sea."}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with smollm2_server(tmp_path_factory.mktemp("model")) as running:
        yield running


def ask(client, messages=USER, max_tokens=24, **members):
    known = {"temperature", "seed", "n", "logit_bias", "logprobs", "top_logprobs", "response_format"}
    named = {name: value for name, value in members.items() if name in known}
    extra = {name: value for name, value in members.items() if name not in known}
    return client.chat.completions.create(
        model="chat", messages=messages, max_tokens=max_tokens, extra_body=extra, **named
    )


def said(client, *args, **members):
    return ask(client, *args, **members).choices[0].message.content


def token_ids(server, text):
    return httpx.post(server.url + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]


def test_a_seed_gives_the_same_text_again_and_another_one_another(client):
    assert said(client, seed=7) == said(client, seed=7) != said(client, seed=8)


def test_seeded_samples_differ_and_can_be_had_again(client):
    first, again = (ask(client, n=2, seed=3) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 2


def test_greedy_samples_are_the_same_text(client):
    texts = [choice.message.content for choice in ask(client, n=2, temperature=0).choices]
    assert texts[0] == texts[1] == said(client, temperature=0)


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"min_p": 1}])
def test_a_cut_to_one_token_is_greedy_at_any_temperature(client, cut):
    assert said(client, temperature=2, **cut) == said(client, temperature=0)


def test_a_bias_forces_a_token_and_forbids_it(client, server):
    (token,) = token_ids(server, " sea")
    assert said(client, temperature=0, max_tokens=4, logit_bias={str(token): 100}) == " sea" * 4
    assert " sea" in said(client, temperature=0)
    assert " sea" not in said(client, temperature=0, logit_bias={str(token): -100})


def test_bad_words_never_come_not_even_of_several_tokens(client):
    free = said(client, temperature=0)
    words = [word for word in free.split() if word.isalpha() and len(word) > 2][:3]
    bad = " ".join(free.split()[1:3])
    held = said(client, temperature=0, bad_words=[*words, bad])
    assert not any(word in held.replace(".", " ").replace(",", " ").split() for word in words)
    assert bad not in held


def test_impossible_tokens_have_finite_log_probabilities(client):
    answer = ask(
        client, temperature=0, max_tokens=8, logprobs=True, top_logprobs=20, structured_outputs={"choice": ["yes"]}
    )
    values = [top.logprob for entry in answer.choices[0].logprobs.content for top in entry.top_logprobs]
    assert len(values) >= 20
    assert all(-9999.0 <= value <= 0 for value in values)


def test_an_object_that_is_cut_ends_with_length(client):
    answer = ask(client, max_tokens=2, temperature=0, response_format={"type": "json_object"})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.lstrip().startswith("{")


def test_a_prompt_comes_from_the_cache_the_second_time_in_whole_blocks(client):
    messages = [{"role": "user", "content": "The sea is wide. " * 20}]
    first, second = (ask(client, messages, max_tokens=2).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < 32  # the template's own beginning, from other tests
    assert second.prompt_tokens_details.cached_tokens > 64
    assert second.prompt_tokens_details.cached_tokens % 16 == 0
    assert second.total_tokens == second.prompt_tokens + second.completion_tokens


def test_a_reset_cache_has_no_prefixes_and_the_same_answers(client, server):
    messages = [{"role": "user", "content": "The shore is long. " * 20}]
    before = ask(client, messages, temperature=0)
    assert ask(client, messages, temperature=0).usage.prompt_tokens_details.cached_tokens > 64
    assert httpx.post(f"http://127.0.0.1:{server.port}/reset_prefix_cache").status_code == 200
    after = ask(client, messages, temperature=0)
    assert after.usage.prompt_tokens_details.cached_tokens == 0
    assert after.choices[0].message.content == before.choices[0].message.content


def test_developers_several_system_messages_and_parts_are_taken(client):
    question = {"role": "user", "content": "Say hello."}
    parts = {"role": "user", "content": [{"type": "text", "text": "Say hello."}]}
    two = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}, question]
    assert said(client, two, temperature=0)
    developer, system = ([{"role": role, "content": "Be brief."}, question] for role in ("developer", "system"))
    assert said(client, developer, temperature=0) == said(client, system, temperature=0)
    assert said(client, [parts], temperature=0) == said(client, [question], temperature=0)


def test_a_final_message_is_continued_and_not_repeated(client):
    begun = [*USER, {"role": "assistant", "content": "The sea is"}]
    text = said(client, begun, temperature=0, add_generation_prompt=False, continue_final_message=True)
    assert text
    assert not text.startswith("The sea is")


def test_an_echo_has_the_log_probabilities_that_lm_eval_reads(client, server):
    prompt = token_ids(server, "The sea is wide and blue")
    answer = client.completions.create(
        model="chat", prompt=prompt, echo=True, max_tokens=1, logprobs=1, temperature=0, seed=1234
    )
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(prompt) + 1
    assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
    assert found.token_logprobs[-1] == max(found.top_logprobs[-1].values())
    again = client.completions.create(model="chat", prompt=prompt, max_tokens=1, logprobs=1, temperature=0)
    assert again.choices[0].logprobs.token_logprobs[0] == pytest.approx(found.token_logprobs[-1], abs=0.05)


def test_responses_are_said_called_and_held_to_schemas(client):
    body = {"model": "chat", "input": "Which city is the capital of France?", "temperature": 0}
    plain = client.responses.create(**body, max_output_tokens=24)
    with client.responses.stream(**body, max_output_tokens=200) as stream:
        streamed = stream.get_final_response()
    assert streamed.output_text.startswith(plain.output_text)
    tool = {"type": "function", "name": "weather", "parameters": CITY}
    called = client.responses.create(**body, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = called.output
    jsonschema.validate(json.loads(call.arguments), CITY)
    wanted = {"type": "json_schema", "name": "city", "schema": CITY}
    formed = client.responses.create(**body, text={"format": wanted})
    jsonschema.validate(json.loads(formed.output_text), CITY)
