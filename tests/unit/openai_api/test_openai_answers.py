"""Whole requests against a scripted engine: what a client sees, streamed and plain."""

import pytest

from backends.api.errors import Code, ServingError
from openai_api.options import OpenAIOptions
from tests.unit.openai_api.face import CHAT, COMPLETIONS, USER, client_of, finish_of, text_of
from tests.unit.openai_api.scripted import EOS, TOKENIZER, WORD, ScriptedModel, says, tokens, tokens_of

USAGE = {"stream_options": {"include_usage": True}}
NASTY = 'quote" back\\ a\r\nb\n\nc\u2028d\u2029e\u0085f\x0b\x00 data: x\n\n: y 🌶️ é e\u0301 हिन्दी 日本'


def usage_of(chunks):
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    return chunks[-1]["usage"]


# Shapes


async def test_a_plain_chat_has_every_required_member():
    async with client_of(ScriptedModel(says("Hello"))) as client:
        answer = await client.chat()
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert (answer["object"], answer["model"]) == ("chat.completion", "chat")
    assert answer["id"].startswith("chatcmpl-")
    assert isinstance(answer["created"], int)
    (choice,) = answer["choices"]
    message = {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []}
    assert choice == {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert answer["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 6,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_the_role_comes_first_and_once():
    async with client_of(ScriptedModel(says("Hello"))) as client:
        chunks = await client.chat_chunks()
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert not any("role" in delta for delta in deltas[1:])
    assert all(delta["content"] for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "chat", "chat.completion.chunk")
    }
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_text_survives_the_wire_in_both_forms(path):
    async with client_of(ScriptedModel(says(NASTY))) as client:
        if path == CHAT:
            plain = (await client.chat())["choices"][0]["message"]["content"]
            chunks = await client.chat_chunks()
        else:
            plain = (await client.complete(max_tokens=500))["choices"][0]["text"]
            chunks = await client.complete_chunks(max_tokens=500)
    assert plain == text_of(chunks) == NASTY
    assert not any("\ufffd" in text_of([chunk]) for chunk in chunks)
    assert finish_of(chunks) == ["stop"]


async def test_invalid_bytes_become_replacement_characters_in_both_forms():
    broken = TOKENIZER.encode("é")[:1] * 2 + tokens_of("x")
    async with client_of(ScriptedModel(tokens(*broken))) as client:
        plain = (await client.chat())["choices"][0]["message"]["content"]
        assert plain == text_of(await client.chat_chunks()) == "\ufffd\ufffdx"


async def test_a_leading_space_is_kept():
    async with client_of(ScriptedModel(tokens(WORD[" hello"]))) as client:
        assert (await client.chat())["choices"][0]["message"]["content"] == " hello"
        assert text_of(await client.chat_chunks()) == " hello"


# Choices and usage


async def test_choices_open_in_order_and_come_one_a_chunk():
    async with client_of(ScriptedModel(says("Hello"))) as client:
        chunks = await client.chat_chunks(n=3, **USAGE)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"].get("role") for chunk in chunks[:3])
    assert all(len(chunk["choices"]) == 1 for chunk in chunks[:-1])
    assert [text_of(chunks, index) for index in range(3)] == ["Hello"] * 3
    assert [finish_of(chunks, index) for index in range(3)] == [["stop"]] * 3
    assert usage_of(chunks)["completion_tokens"] == 18
    assert usage_of(chunks)["prompt_tokens"] == 21


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("skip", [False, True])
async def test_offsets_of_tokens_are_into_the_text_with_special_tokens_or_without(echo, skip):
    script = tokens(*tokens_of("a"), TOKENIZER.token_id("<|im_start|>"), *tokens_of("bc"))
    asked = {"prompt": "x<|im_start|>y", "logprobs": 0, "echo": echo, "skip_special_tokens": skip}
    async with client_of(ScriptedModel(script)) as client:
        choice = (await client.complete(**asked))["choices"][0]
        chunks = await client.complete_chunks(**asked)
    found, text = choice["logprobs"], choice["text"]
    for token, offset in zip(found["tokens"], found["text_offset"], strict=True):
        assert text.startswith(token, offset) or (skip and token in ("<|im_start|>", "<|im_end|>"))
    pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"]]
    assert [offset for piece in pieces if piece for offset in piece["text_offset"]] == found["text_offset"]


async def test_several_prompts_and_samples_are_numbered_prompt_first():
    def script(request):
        return tokens_of(f"{len(request.prompt)}-{request.id[-1]}")

    async with client_of(ScriptedModel(script)) as client:
        answer = await client.complete(["a", [1, 2]], n=2)
        chunks = await client.complete_chunks(["a", [1, 2]], n=2, **USAGE)
    want = ["1-0", "1-1", "2-2", "2-3"]
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == list(enumerate(want))
    assert [text_of(chunks, index) for index in range(4)] == want
    assert answer["usage"] == usage_of(chunks)
    assert answer["usage"]["prompt_tokens"] == 3


async def test_samples_of_a_seeded_request_have_seeds_of_their_own():
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        await client.chat(n=3, seed=7)
        await client.chat(n=2)
        await client.complete(["a", "b"], n=2, seed=2**63 - 1)
    seeds = [request.sampling.seed for request in model.requests]
    assert seeds == [7, 8, 9, None, None, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63)]
    assert len({request.id for request in model.requests}) == 9


@pytest.mark.parametrize("limit", [1, 3, 30])
async def test_usage_is_the_same_streamed_and_plain(limit):
    async with client_of(ScriptedModel(says("Hello 🎉 world"), num_cached=1)) as client:
        answer = await client.complete(max_tokens=limit)
        chunks = await client.complete_chunks(max_tokens=limit, **USAGE)
    assert answer["usage"] == usage_of(chunks)
    assert answer["usage"]["completion_tokens"] == min(limit, len(tokens_of("Hello 🎉 world")) + 1)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert answer["choices"][0]["text"] == text_of(chunks)
    assert [answer["choices"][0]["finish_reason"]] == finish_of(chunks)


async def test_continuous_usage_grows_with_every_chunk():
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    async with client_of(ScriptedModel(says("Hello 🎉"))) as client:
        chunks = await client.chat_chunks(**options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[:-1] == sorted(set(counts[:-1]))
    assert counts[-1] == counts[-2] == 11


async def test_no_usage_comes_unasked():
    async with client_of(ScriptedModel(says("x"))) as client:
        for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
            chunks = await client.chat_chunks(stream_options=options)
            assert not any("usage" in chunk or chunk["choices"] == [] for chunk in chunks)


# Where it stops


@pytest.mark.parametrize("stop", ["STOP", ["zzz", "STOP", "TOP"]])
async def test_no_part_of_a_stop_string_is_sent(stop):
    async with client_of(ScriptedModel(says("one STO two STOP three"))) as client:
        answer = (await client.chat(stop=stop))["choices"][0]
        chunks = await client.chat_chunks(stop=stop, **USAGE)
    assert answer["message"]["content"] == text_of(chunks) == "one STO two "
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", "STOP")
    assert chunks[-2]["choices"][0]["stop_reason"] == "STOP"
    assert usage_of(chunks)["completion_tokens"] == len("one STO two STOP")


async def test_a_stop_string_ends_the_work_of_the_engine():
    model = ScriptedModel(says("STOP" + "x" * 1000))
    async with client_of(model) as client:
        await client.chat(stop="STOP")
        await client.chat_chunks(stop="STOP")
    assert model.num_aborted == 2


async def test_the_match_that_is_complete_first_wins():
    async with client_of(ScriptedModel(says("xx abc"))) as client:
        answer = (await client.chat(stop=["abc", "ab"]))["choices"][0]
    assert (answer["message"]["content"], answer["stop_reason"]) == ("xx ", "ab")


async def test_a_stop_string_that_never_comes_changes_nothing():
    async with client_of(ScriptedModel(says("Hello STO"))) as client:
        chunks = await client.chat_chunks(stop=["STOP", "lo x"])
    assert text_of(chunks) == "Hello STO"
    assert len(chunks) > 4


async def test_a_stop_string_can_be_included_and_delayed():
    async with client_of(ScriptedModel(says("STOP a STOP b"))) as client:
        answer = await client.chat(stop="STOP", include_stop_str_in_output=True)
        later = await client.chat(stop="STOP", min_tokens=6)
    assert answer["choices"][0]["message"]["content"] == "STOP"
    assert later["choices"][0]["message"]["content"] == "STOP a "


async def test_a_stop_token_ends_without_its_text():
    async with client_of(ScriptedModel(tokens(*tokens_of("a"), WORD[" stop"], *tokens_of("b")))) as client:
        answer = (await client.chat(stop_token_ids=[WORD[" stop"]]))["choices"][0]
        chunks = await client.chat_chunks(stop_token_ids=[WORD[" stop"]])
    assert answer["message"]["content"] == text_of(chunks) == "a"
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", WORD[" stop"])


async def test_special_tokens_show_only_where_asked():
    async with client_of(ScriptedModel(says("x"))) as client:
        assert (await client.chat())["choices"][0]["message"]["content"] == "x"
        shown = await client.chat(skip_special_tokens=False)
        assert shown["choices"][0]["message"]["content"] == "x<|im_end|>"


async def test_ignore_eos_runs_to_the_limit():
    async with client_of(ScriptedModel(says("x"))) as client:
        answer = await client.chat(ignore_eos=True, max_tokens=9)
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["choices"][0]["finish_reason"] == "length"


# Log-probabilities


@pytest.mark.parametrize("top", [0, 5])
async def test_chat_logprobs_are_in_step_with_the_text(top):
    async with client_of(ScriptedModel(says("né🎉"))) as client:
        answer = (await client.chat(logprobs=True, top_logprobs=top))["choices"][0]
        chunks = await client.chat_chunks(logprobs=True, top_logprobs=top)
    entries = answer["logprobs"]["content"]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in streamed if part for entry in part["content"]] == entries
    assert b"".join(bytes(entry["bytes"]) for entry in entries).startswith("né🎉".encode())
    assert all(len(entry["top_logprobs"]) == top for entry in entries)
    assert entries[0] | {"top_logprobs": []} == {"token": "n", "logprob": -0.25, "bytes": [110], "top_logprobs": []}


async def test_stop_strings_keep_logprobs_and_text_in_step():
    async with client_of(ScriptedModel(says("ab STOP"))) as client:
        answer = (await client.chat(logprobs=True, stop="STOP"))["choices"][0]
        chunks = await client.chat_chunks(logprobs=True, stop="STOP")
    entries = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert entries == answer["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "ab STOP"


@pytest.mark.parametrize(("count", "num_entries"), [(0, 1), (5, 5)])
async def test_completion_logprobs_are_parallel_lists(count, num_entries):
    async with client_of(ScriptedModel(says("Hi"))) as client:
        found = (await client.complete(logprobs=count))["choices"][0]["logprobs"]
    assert found["tokens"] == ["H", "i", "<|im_end|>"]
    assert found["text_offset"] == [0, 1, 2]
    assert found["token_logprobs"] == [-0.25] * 3
    assert [len(best) for best in found["top_logprobs"]] == [num_entries] * 3
    assert all(max(best.values()) == -0.25 for best in found["top_logprobs"])


async def test_streamed_offsets_equal_the_plain_ones_in_spite_of_stop_strings():
    async with client_of(ScriptedModel(says("né STO🎉 x STOP"))) as client:
        body = {"logprobs": 1, "max_tokens": 50, "stop": ["STOP"]}
        plain = (await client.complete(**body))["choices"][0]["logprobs"]
        chunks = await client.complete_chunks(**body)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    for name, values in plain.items():
        assert [value for part in parts for value in part[name]] == values


async def test_an_echo_with_logprobs_begins_with_the_prompt():
    async with client_of(ScriptedModel(says("yz"))) as client:
        answer = await client.complete("abx", echo=True, logprobs=1, max_tokens=1)
        chunks = await client.complete_chunks("abx", echo=True, logprobs=1, max_tokens=1)
        alone = await client.complete("abx", echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer["choices"]
    assert choice["text"] == text_of(chunks) == "abxy"
    found = choice["logprobs"]
    assert found["tokens"] == ["a", "b", "x", "y"]
    assert found["token_logprobs"] == [None, -0.25, -0.25, -0.25]
    assert found["top_logprobs"][0] is None
    assert {len(values) for values in found.values()} == {4}
    assert answer["usage"]["completion_tokens"] == 1
    assert alone["choices"][0]["text"] == "abx"
    assert alone["choices"][0]["logprobs"]["tokens"] == ["a", "b", "x"]
    assert alone["choices"][0]["finish_reason"] == "length"
    assert alone["usage"]["completion_tokens"] == 0


async def test_an_echo_of_tokens_is_their_text():
    async with client_of(ScriptedModel(says("!"))) as client:
        assert (await client.complete(tokens_of("né"), echo=True))["choices"][0]["text"] == "né!"


async def test_prompt_logprobs_have_one_entry_a_prompt_token():
    async with client_of(ScriptedModel(says("x"))) as client:
        answer = (await client.complete("hey", prompt_logprobs=1))["choices"][0]
        chat = await client.chat(prompt_logprobs=1)
    first, second, _ = answer["prompt_logprobs"]
    assert first is None
    assert second == {str(tokens_of("e")[0]): {"logprob": -0.25, "rank": 1, "decoded_token": "e"}}
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


async def test_impossible_tokens_have_a_finite_logprob():
    from backends.api.request import FinishReason, TokenEvent, TokenLogprobs

    class Certain(ScriptedModel):
        def generate(self, request):
            found = TokenLogprobs(0, 0.0, 1, [(0, 0.0), (1, float("-inf"))])
            request.stream.finish(TokenEvent([0], [found], FinishReason.LENGTH))

    async with client_of(Certain(says(""))) as client:
        answer = (await client.chat(logprobs=True, top_logprobs=2))["choices"][0]
        chunks = await client.chat_chunks(logprobs=True, top_logprobs=2)
    assert answer["logprobs"]["content"][0]["top_logprobs"][1]["logprob"] == -9999.0
    assert chunks[1]["choices"][0]["logprobs"] == answer["logprobs"]


async def test_tokens_can_be_printed_as_ids():
    async with client_of(ScriptedModel(says("x"))) as client:
        answer = await client.chat(logprobs=True, return_tokens_as_token_ids=True, max_tokens=1)
    assert answer["choices"][0]["logprobs"]["content"][0]["token"] == f"token_id:{tokens_of('x')[0]}"


async def test_token_ids_come_with_the_answer_where_asked():
    body = {"return_token_ids": True, "max_tokens": 2}
    async with client_of(ScriptedModel(says("xyz"))) as client:
        chat, completion = await client.chat(**body), await client.complete("hi", **body)
        streamed = await client.complete_chunks("hi", **body)
        chat_streamed = await client.chat_chunks(**body)
    assert chat["choices"][0]["token_ids"] == completion["choices"][0]["token_ids"] == tokens_of("xy")
    assert completion["choices"][0]["prompt_token_ids"] == tokens_of("hi")
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert [token for chunk in streamed for token in chunk["choices"][0]["token_ids"]] == tokens_of("xy")
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in streamed] == [tokens_of("hi"), None]
    assert chat_streamed[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chat_streamed[1:])


# What the engine is asked


async def test_settings_reach_the_engine():
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        await client.chat(
            temperature=0,
            top_p=0.5,
            top_k=10**12,
            min_p=0.1,
            logit_bias={str(EOS): -100},
            presence_penalty=1,
            bad_words=["ab"],
            max_tokens=7,
            min_tokens=2,
            priority=-3,
            cache_salt="tenant",
        )
    (request,) = model.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k) == (0, 0.5, 0.1, TOKENIZER.vocab_size)
    assert sampling.logit_bias == {EOS: -100}
    assert sampling.bad_words == (tuple(tokens_of("ab")), tuple(tokens_of(" ab")))
    assert (sampling.max_tokens, sampling.min_tokens) == (7, 2)
    assert (request.priority, request.cache_salt) == (-3, "tenant")


async def test_the_token_limit_is_what_is_left_of_the_context():
    model = ScriptedModel(says("x"), max_model_len=30)
    async with client_of(model) as client:
        await client.chat()
        await client.chat(max_tokens=10**6)
        await client.complete("x" * 29)
    assert [request.sampling.max_tokens for request in model.requests] == [9, 9, 1]


async def test_a_strict_server_refuses_a_limit_without_room():
    model = ScriptedModel(says("x"), max_model_len=30)
    async with client_of(model, options=OpenAIOptions(strict_max_tokens=True)) as client:
        status, error = await client.error(CHAT, {"messages": USER, "max_tokens": 100})
    assert (status, error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("members", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "ef"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, "ab"),
        ({"truncate_prompt_tokens": -1}, "cdef"),
    ],
)
async def test_a_prompt_is_cut_where_asked(members, kept):
    model = ScriptedModel(says("x"), max_model_len=5)
    async with client_of(model) as client:
        answer = await client.complete("abcdef", echo=True, max_tokens=1, **members)
    assert model.requests[0].prompt == tokens_of(kept)
    assert answer["choices"][0]["text"] == kept + "x"


async def test_a_message_is_the_same_as_text_and_as_parts():
    model = ScriptedModel(says("x"))
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    async with client_of(model) as client:
        await client.chat()
        await client.post(CHAT, {"messages": parts})
    assert model.requests[0].prompt == model.requests[1].prompt


async def test_a_final_message_is_continued_and_echoed():
    model = ScriptedModel(says(" sky"))
    messages = [*USER, {"role": "assistant", "content": "The"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, "echo": True}
    async with client_of(model) as client:
        answer = (await client.post(CHAT, body)).json()
        chunks = await client.chat_chunks(**body)
    assert TOKENIZER.decode_window(model.requests[0].prompt, False).endswith("<|im_start|>assistant\nThe")
    assert answer["choices"][0]["message"]["content"] == text_of(chunks) == "The sky"


@pytest.mark.parametrize("role", ["system", "developer", "tool", "critic"])
async def test_a_role_that_openai_or_the_template_knows_is_taken(role):
    async with client_of(ScriptedModel(says("x"))) as client:
        response = await client.post(CHAT, {"messages": [{"role": role, "content": "a"}, *USER]})
    assert response.status_code == 200


async def test_the_template_gets_the_variables_it_knows():
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        await client.chat(chat_template_kwargs={"persona": "pirate", "unknown": 1})
    assert "pirate" in TOKENIZER.decode_window(model.requests[0].prompt, False)


async def test_a_long_prompt_is_prepared_off_the_loop():
    model = ScriptedModel(says("x"), max_model_len=20_000)
    async with client_of(model) as client:
        answer = await client.complete("y" * 10_000)
    assert answer["usage"]["prompt_tokens"] == 10_000


async def test_a_model_replaced_while_a_prompt_is_prepared_is_not_asked():
    old, new = (ScriptedModel(says(version), version=version) for version in ("1", "2"))

    async with client_of(old) as client:
        render = old.template.render

        def replaced_meanwhile(*args, **kwargs):
            client.repository.add(new)
            return render(*args, **kwargs)

        old.template.render = replaced_meanwhile
        answer = await client.chat()
    assert answer["choices"][0]["message"]["content"] == "2"
    assert old.requests == []


# Errors


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (CHAT, {"messages": USER, "model": "nope"}, 404, "model_not_found", "model"),
        (CHAT, {"messages": USER, "model": "chat:9"}, 404, "model_not_found", "model"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "context_length_exceeded", "messages"),
        (CHAT, {"messages": [{"role": "nobody", "content": "x"}]}, 400, "invalid_value", "messages[0].role"),
        (COMPLETIONS, {"prompt": "x" * 5000}, 400, "context_length_exceeded", "prompt"),
        (COMPLETIONS, {"prompt": ["a", "x" * 5000]}, 400, "context_length_exceeded", "prompt[1]"),
        (COMPLETIONS, {"prompt": [10**7]}, 400, "invalid_value", "prompt"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"49152": 5}}, 400, "invalid_value", "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "stop_token_ids": [-1]}, 400, "invalid_value", "stop_token_ids"),
        (COMPLETIONS, {"prompt": "x", "allowed_token_ids": [10**7]}, 400, "invalid_value", "allowed_token_ids"),
        (
            COMPLETIONS,
            {"prompt": "x", "truncate_prompt_tokens": 0},
            400,
            "integer_below_min_value",
            "truncate_prompt_tokens",
        ),
    ],
)
async def test_a_request_the_model_cannot_take_is_refused(path, body, status, code, param):
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        got, error = await client.error(path, body)
    assert (got, error["code"], error["param"]) == (status, code, param)
    assert model.requests == []


async def test_a_prompt_too_long_is_said_in_words_clients_look_for():
    async with client_of(ScriptedModel(says("x"), max_model_len=10)) as client:
        _, error = await client.error(COMPLETIONS, {"prompt": "x" * 10})
    assert "maximum context length is 10 tokens" in error["message"]


async def test_a_stream_that_fails_later_ends_with_an_error_event_alone():
    failing = tokens(*tokens_of("abc"), ServingError(Code.UNAVAILABLE, "engine process ended (signal 9)"))
    async with client_of(ScriptedModel(failing)) as client:
        response = await client.post(CHAT, {"messages": USER, "stream": True, "n": 2})
        plain = await client.post(CHAT, {"messages": USER})
    assert response.status_code == 200
    last = response.content.rstrip().rsplit(b"\n\n", 1)[1]
    assert last.startswith(b'data: {"error":{"message":"engine process ended (signal 9)","type":"server_error"')
    assert b"[DONE]" not in response.content
    assert b'"finish_reason":"' not in response.content
    assert plain.status_code == 503
    assert "retry-after" in plain.headers


async def test_a_full_queue_refuses_all_samples_before_anything_is_sent():
    model = ScriptedModel(says("x" * 1000), refuse_after=2)
    async with client_of(model) as client:
        response = await client.post(CHAT, {"messages": USER, "n": 3, "stream": True})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "overloaded"
    assert all(request.stream.cancelled for request in model.requests)


async def test_a_chat_too_long_for_its_template_is_too_long_for_the_model():
    options = OpenAIOptions(max_body_bytes=1 << 25)
    async with client_of(ScriptedModel(says("x")), options=options) as client:
        status, error = await client.error(CHAT, {"messages": [{"role": "user", "content": "x" * 16_000_000}]})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "maximum context length is 4096 tokens" in error["message"]


async def test_more_choices_than_the_queue_can_ever_hold_are_the_callers_fault_and_none_is_begun():
    model = ScriptedModel(says("x"), max_together=3)
    async with client_of(model) as client:
        assert (await client.error(CHAT, {"messages": USER, "n": 4}))[0] == 400
        assert (await client.error(COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "stream": True}))[0] == 400
        assert model.requests == []
        assert len((await client.chat(n=3))["choices"]) == 3


async def test_a_bug_is_told_without_its_details():
    def script(request):
        return tokens_of("x")

    class Broken(ScriptedModel):
        def generate(self, request):
            raise RuntimeError("secret path /srv/model")

    async with client_of(Broken(script)) as client:
        response = await client.post(CHAT, {"messages": USER})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in response.json()["error"]["message"]
    assert response.headers["x-should-retry"] == "false"


# Plumbing


async def test_an_empty_model_id_is_no_id_and_the_bare_prefix_no_endpoint():
    async with client_of(ScriptedModel(says("x"))) as client:
        listed = (await client.http.get("/v1/models")).json()
        assert (await client.http.get("/v1/models/")).json() == listed
        for path in ("/v1", "/v1/"):
            for answer in (await client.http.get(path), await client.http.post(path)):
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_a_request_id_is_echoed_where_it_is_safe():
    async with client_of(ScriptedModel(says("x"))) as client:
        given = await client.http.post(CHAT, json={"model": "chat", "messages": USER}, headers={"X-Request-Id": "a-1"})
        bad = await client.http.post(CHAT, json={"model": "chat", "messages": USER}, headers={"X-Request-Id": "a b"})
        in_body = await client.post(CHAT, {"messages": USER, "request_id": "body-7"})
    assert given.headers["x-request-id"] == "a-1"
    assert len(bad.headers["x-request-id"]) == 32
    assert in_body.headers["x-request-id"] == "body-7"


async def test_same_outside_ids_are_different_inside():
    model = ScriptedModel(says("x"))
    async with client_of(model) as client:
        for _ in range(2):
            await client.post(CHAT, {"messages": USER, "request_id": "same"})
    assert len({request.id for request in model.requests}) == 2


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"42", b"null"])
async def test_a_body_that_is_no_object_is_a_400(body):
    async with client_of(ScriptedModel(says("x"))) as client:
        response = await client.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_form_post_from_a_web_page_is_refused():
    async with client_of(ScriptedModel(says("x"))) as client:
        response = await client.http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 400


async def test_a_body_over_the_limit_is_a_413_declared_or_not():
    async def endless():
        for _ in range(64):
            yield b" " * 1024

    options = OpenAIOptions(max_body_bytes=4096)
    async with client_of(ScriptedModel(says("x")), options=options) as client:
        headers = {"content-type": "application/json"}
        declared = await client.http.post(CHAT, content=b" " * 5000, headers=headers)
        chunked = await client.http.post(CHAT, content=endless(), headers=headers)
    for response in (declared, chunked):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


async def test_the_service_tier_is_echoed_only_to_those_who_named_one():
    async with client_of(ScriptedModel(says("x"))) as client:
        assert (await client.chat(service_tier="auto"))["service_tier"] == "default"
        assert "service_tier" not in await client.chat()


async def test_prefixes_are_forgotten_on_demand():
    model = ScriptedModel(says("x"), num_cached=16)
    async with client_of(model) as client:
        before = await client.chat()
        assert (await client.http.post("/reset_prefix_cache")).status_code == 200
        after = await client.chat()
        assert (await client.http.get("/reset_prefix_cache")).status_code == 405
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (before, after)]
    assert cached == [16, 0]
